#!/usr/bin/env bash
# build.sh: makes the image metal3-guard, and an archive of it in target/image.
#
# With docker, podman or buildah, whichever is there and works, by the Dockerfile. Where there is
# none, or its base images cannot be had, the program is built here and packed by oci.py; such an
# image is only in the archive, for `ctr images import`, `podman load` or `kind load image-archive`.
#
#   IMAGE       name and tag (metal3-guard:dev, which the manifests name)
#   RUST_IMAGE  image to build in
#   BASE_IMAGE  image to build on (scratch)
#   ENGINE      docker, podman, buildah or none, instead of looking
#   TARGET      what to build for, without an engine (this machine's own, with musl); its C compiler
#               is musl-gcc, of Debian's musl-tools, or what CC_<target> says
set -euo pipefail

cd "$(dirname "$0")/.."
image=${IMAGE:-metal3-guard:dev}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
revision=$(git rev-parse HEAD 2> /dev/null || true)
rust=${RUST_IMAGE:-$(sed -n 's/^ARG RUST_IMAGE=//p' Dockerfile)}
base=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile)}
folder=${CARGO_TARGET_DIR:-target}/image
archive=$folder/metal3-guard.tar
mkdir -p "$folder"

say() { echo "image: $*" >&2; }

# has ENGINE: whether it is there and answers.
has() {
	command -v "$1" > /dev/null || return 1
	case $1 in
	docker) timeout 20 docker info > /dev/null 2>&1 ;;
	*) timeout 20 "$1" info > /dev/null 2>&1 ;;
	esac
}

# have ENGINE IMAGE: whether the engine has that image or can get it.
have() {
	[ "$2" != scratch ] || return 0
	local inspect=(image inspect)
	[ "$1" != buildah ] || inspect=(inspect --type image)
	"$1" "${inspect[@]}" "$2" > /dev/null 2>&1 || timeout 600 "$1" pull "$2" >&2
}

build_with() {
	local engine=$1 build=(build)
	[ "$engine" != buildah ] || build=(bud)
	"$engine" "${build[@]}" -t "$image" -f Dockerfile --build-arg "RUST_IMAGE=$rust" \
		--build-arg "BASE_IMAGE=$base" --build-arg "VERSION=$version" \
		--build-arg "REVISION=$revision" .
	rm -f "$archive"
	case $engine in
	docker) docker save -o "$archive" "$image" ;;
	podman) podman save --format oci-archive -o "$archive" "$image" ;;
	buildah) buildah push "$image" "oci-archive:$archive:$image" ;;
	esac
}

# c_compiler TARGET: a C compiler with the headers of musl, which Rust does not bring along: the
# system's own where that is a system on musl.
c_compiler() {
	if [ "$1" = "$(uname -m)-unknown-linux-musl" ]; then
		if command -v musl-gcc; then return; fi
		case $(cc -dumpmachine 2> /dev/null) in *-musl) echo cc && return ;; esac
	fi
	say "no C compiler for $1: install musl-tools (Debian) or musl-gcc (Fedora), or name one" \
		"in CC_${1//-/_}"
	return 1
}

# Static with musl, which Rust brings along. The allocator and `ring` have C in them.
build_here() {
	local target=${TARGET:-$(uname -m)-unknown-linux-musl} name compiler
	command -v cargo > /dev/null || {
		say "cargo is missing: install Rust with rustup, see https://rustup.rs"
		exit 1
	}
	if command -v rustup > /dev/null && ! rustup target list --installed | grep -qx "$target"; then
		rustup target add "$target" >&2
	fi
	name=CC_${target//-/_}
	if [ -z "${!name:-}" ]; then
		compiler=$(c_compiler "$target")
		export "$name=$compiler"
	fi
	# Also where a distribution's own musl would be linked dynamically.
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --target "$target"
	python3 image/oci.py pack "$archive" --name "$image" --version "$version" \
		--revision "$revision" --binary "${CARGO_TARGET_DIR:-target}/$target/release/metal3-guard"
}

engine=${ENGINE:-}
if [ -z "$engine" ]; then
	engine=none
	for candidate in docker podman buildah; do
		if has "$candidate"; then
			engine=$candidate
			break
		fi
	done
	if [ "$engine" != none ] && ! { have "$engine" "$rust" && have "$engine" "$base"; }; then
		say "$engine cannot get $rust or $base: building here instead"
		engine=none
	fi
fi
say "$image, with $engine"
if [ "$engine" = none ]; then build_here; else build_with "$engine"; fi
python3 image/oci.py check "$archive"
