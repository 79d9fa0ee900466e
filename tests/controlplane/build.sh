#!/usr/bin/env bash
# build.sh [kube|capi|node|helm|promtool|all]: a real Kubernetes control plane for the tests, and the
# tools that they put to it, as binaries.
#
#   kube      etcd, kube-apiserver, kube-controller-manager, kubectl, ... (the default)
#   capi      clusterctl and the core manager of Cluster API, old and new, with their CRDs
#   node      containerd, its shim and ctr, CNI plugins, pause: what a node needs besides kube
#   helm      helm, for the chart
#   promtool  promtool, for the alert rules
#   all       capi and kube
#
# Built from Go modules with pinned sums, once per machine: the result is kept under the
# user's cache folder by a hash of everything that decides it, and the next call finds it.
# The folder with the binaries is the last line on stdout; progress goes to stderr.
# With KUBEBUILDER_ASSETS set, its binaries are used and nothing is built (kube only).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/metal3-guard/controlplane

# These are part of the key of nearly every package in Go's own build cache: another build
# on this machine with other values would start from nothing. -s -w: no debug data.
export CGO_ENABLED=1 GOWORK=off
export GOFLAGS=-mod=readonly # instead of the user's own flags, `go env -w` included
build_flags=(-trimpath -buildvcs=false)
link_flags="-s -w"

say() { echo "controlplane: $*" >&2; }
die() {
	say "$1"
	shift
	for line in "$@"; do echo "  $line" >&2; done
	exit 1
}

# version_of FOLDER MODULE: what the folder's go.mod pins, as v1.2.3.
version_of() { sed -n "s|^\(require\)\{0,1\}[[:space:]]*$2 \(v[^ ]*\).*|\2|p" "$here/$1/go.mod" | head -n 1; }

# part N VERSION: the Nth number of v1.2.3.
part() { cut -d. -f"$1" <<< "${2#v}"; }

duration() { if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# compile FOLDER OUTPUT PACKAGE USUALLY [LINKFLAG..]: one binary, with a line of progress
# twice a minute, since Go itself says nothing for as long as all goes well.
compile() {
	local folder=$1 output=$2 package=$3 usually=$4 start=$SECONDS said=$SECONDS pid
	shift 4
	say "building ${output#"$building"/} (usually $usually from nothing on two free cores, a minute or two when Go has cached the packages)"
	mkdir -p "$(dirname "$output")"
	set -m # a process group of its own, so that all of it can be killed
	(
		cd "$here/$folder"
		exec nice -n 10 go build "${build_flags[@]}" -p "$jobs" -ldflags "$link_flags $*" -o "$output" "$package"
	) &
	pid=$!
	set +m
	compiling=$pid
	while kill -0 "$pid" 2> /dev/null; do
		sleep 1
		if [ $((SECONDS - said)) -ge 30 ]; then
			said=$SECONDS
			say "  ${output##*/}: $(duration $((SECONDS - start))) so far"
		fi
	done
	wait "$pid" || die "${output##*/} did not build; Go's own message is above." \
		"No network? The modules come from GOPROXY ($(go env GOPROXY))." \
		"No space? A first build needs about 5 GB in $(go env GOCACHE) and $(go env GOMODCACHE)."
	compiling=
	say "  ${output##*/}: done in $(duration $((SECONDS - start)))"
}

build_kube() {
	local kube etcd package name flags=()
	kube=$(version_of kube k8s.io/kubernetes)
	etcd=$(version_of etcd go.etcd.io/etcd/server/v3)
	say "etcd $etcd and Kubernetes $kube are needed to run tests against a real API server"
	compile etcd "$building/etcd" . "2 minutes"
	# Without a version, the server calls itself v0.0.0 and its feature gates misbehave; the
	# second package is what clients, the server's own included, call themselves.
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		flags+=("-X $package.gitVersion=$kube" "-X $package.gitMajor=$(part 1 "$kube")"
			"-X $package.gitMinor=$(part 2 "$kube")" "-X $package.gitTreeState=clean")
	done
	compile kube "$building/kube" . "7 to 11 minutes" "${flags[@]}"
	for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
		ln -s kube "$building/$name"
	done
}

build_capi() {
	local folder version manager crds source module=sigs.k8s.io/cluster-api flags
	local x=$module/version
	for folder in capi-v1.9.4 capi-v1.14; do
		version=$(version_of $folder $module)
		flags=("-X $x.gitVersion=$version" "-X $x.gitMajor=$(part 1 "$version")"
			"-X $x.gitMinor=$(part 2 "$version")" "-X $x.gitTreeState=clean")
		manager=$module/core crds=core/config/crd/bases
		[ $folder != capi-v1.9.4 ] || manager=$module crds=config/crd/bases
		compile $folder "$building/$folder/clusterctl" $module/cmd/clusterctl "4 minutes" "${flags[@]}"
		compile $folder "$building/$folder/manager" "$manager" "2 minutes" "${flags[@]}"
		# The kinds that these very versions read and write, for a control plane to serve.
		source=$(cd "$here/$folder" && go list -m -f '{{.Dir}}' $module)
		mkdir "$building/$folder/crds"
		cp "$source/$crds"/*.yaml "$source/cmd/clusterctl/config/manifest/clusterctl-api.yaml" \
			"$source"/controlplane/kubeadm/config/crd/bases/*_kubeadmcontrolplanes.yaml \
			"$building/$folder/crds"
		chmod u+w "$building/$folder/crds"/*
	done
}

build_helm() {
	local version library x=helm.sh/helm/v3 package flags
	version=$(version_of helm $x)
	library=$(version_of helm k8s.io/client-go)
	flags=("-X $x/internal/version.version=$version" "-X $x/internal/version.gitTreeState=clean")
	# The Kubernetes that `helm template` and `helm lint` work for without a cluster.
	for package in chartutil lint/rules; do
		flags+=("-X $x/pkg/$package.k8sVersionMajor=1"
			"-X $x/pkg/$package.k8sVersionMinor=$(part 2 "$library")")
	done
	compile helm "$building/helm" $x/cmd/helm "4 minutes" "${flags[@]}"
}

build_promtool() {
	local version module=github.com/prometheus/prometheus x=github.com/prometheus/common/version
	version=$(version_of promtool $module)
	# Rules are tested without anything to scrape: the clients of all clouds stay out.
	GOFLAGS="$GOFLAGS -tags=remove_all_sd" compile promtool "$building/promtool" \
		$module/cmd/promtool "5 minutes" "-X $x.Version=${version#v}"
}

build_node() {
	local name version source module=github.com/containerd/containerd/v2
	version=$(version_of containerd $module)
	for name in containerd containerd-shim-runc-v2 ctr; do
		GOFLAGS="$GOFLAGS -tags=no_btrfs,no_devmapper,no_zfs" compile containerd "$building/$name" \
			$module/cmd/$name "3 minutes" "-X $module/version.Version=$version"
	done
	module=github.com/containernetworking/plugins/plugins
	for name in main/loopback main/ptp ipam/host-local meta/portmap; do
		compile cni "$building/cni/${name#*/}" $module/$name "20 seconds"
	done
	# The program of the image that holds each pod's namespaces: C, and part of Kubernetes.
	source=$(cd "$here/kube" && go mod download -json k8s.io/kubernetes | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
	"$(go env CC)" -Os -s -static -DVERSION="$(version_of kube k8s.io/kubernetes)" \
		-o "$building/pause" "$source/build/pause/linux/pause.c" ||
		die "pause did not build; the compiler's own message is above." \
			"It is linked statically: that needs the C library's static archive (libc6-dev, glibc-static)."
}

# key SET: everything that decides the binaries, short. Not the version of Go: what is
# built stays usable where Go is not (or no longer) installed.
key() {
	local folders
	case $1 in
	kube) folders=(etcd kube) ;;
	capi) folders=(capi-v1.9.4 capi-v1.14) ;;
	node) folders=(containerd cni) ;;
	*) folders=("$1") ;;
	esac
	(
		cd "$here"
		uname -sm
		echo "$CGO_ENABLED ${build_flags[*]} $link_flags"
		declare -f "build_$1" compile # the version flags, and the names
		[ "$1" != node ] || version_of kube k8s.io/kubernetes # whose pause it is
		for folder in "${folders[@]}"; do
			for file in go.mod go.sum main.go; do
				[ ! -e "$folder/$file" ] || { echo "$folder/$file" && cat "$folder/$file"; }
			done
		done
	) | sha256sum | cut -c 1-16
}

# need_go SET: whether it can be built at all.
need_go() {
	local answer what=("the control plane" "Or, if you have the binaries already, set KUBEBUILDER_ASSETS to the folder with"
		"etcd, kube-apiserver, kube-controller-manager and kubectl: then nothing is built.")
	[ "$1" = kube ] || what=("Cluster API, for the tests that move a cluster with clusterctl")
	command -v go > /dev/null || die "Go is needed to build ${what[0]}, and there is no \`go\` in PATH." \
		"Get Go 1.26 or newer: https://go.dev/dl/ (unpack it, add its bin folder to PATH)," \
		"or the package \`golang\` of your system when that is new enough." \
		"${what[@]:1}"
	answer=$(cd "$here/kube" && go list -m 2>&1) || die "this Go cannot build ${what[0]}: $answer" \
		"Get Go 1.26 or newer from https://go.dev/dl/, or let Go fetch it by itself: GOTOOLCHAIN=auto." \
		"${what[@]:1}"
	command -v "$(go env CC | cut -d' ' -f1)" > /dev/null ||
		die "a C compiler ($(go env CC)) is needed by Go's CGO: install gcc or clang."
}

# As many compilers at once as there are cores, but no more than there is memory for:
# a big package takes about 1 GB.
parallel() {
	local cores memory
	cores=$(getconf _NPROCESSORS_ONLN)
	memory=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2> /dev/null || true)
	[ "${memory:-$cores}" -ge 1 ] || memory=1
	echo $((cores < ${memory:-$cores} ? cores : ${memory:-$cores}))
}

building=
compiling=
clean_up() {
	[ -z "$compiling" ] || kill -KILL -- "-$compiling" 2> /dev/null || true
	[ -z "$building" ] || rm -rf "$building" # after the rename: no longer there
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# build SET: leaves the folder's name in $built.
build() {
	local set=$1 start=$SECONDS
	built=$cache/$(key "$set")
	[ ! -d "$built" ] || return 0
	need_go "$set"
	mkdir -p "$cache"
	if command -v flock > /dev/null; then
		exec 9> "$built.lock"
		flock -n 9 || {
			say "another build of the same is running; waiting for it"
			flock 9 &
			wait "$!" # unlike flock itself, ends at once when this script is told to
		}
		[ ! -d "$built" ] || return 0
		rm -rf "$built".building.* # what a killed build left
	fi
	jobs=$(parallel)
	building=$(mktemp -d "$built.building.XXXXXX")
	chmod 755 "$building"
	export GOTMPDIR=$building/tmp
	mkdir "$GOTMPDIR"
	"build_$set"
	rm -rf "$GOTMPDIR"
	# Whole or not at all: a half-built folder never has the final name. Without flock a
	# second build may have been faster; then its result is as good.
	[ -d "$built" ] || mv "$building" "$built"
	say "ready in $(duration $((SECONDS - start))), $(du -sh "$built" | cut -f1): $built"
}

# existing: the folder in KUBEBUILDER_ASSETS, complete or refused.
existing() {
	local name missing=()
	for name in etcd kube-apiserver kubectl kube-controller-manager; do
		[ -x "$KUBEBUILDER_ASSETS/$name" ] || missing+=("$name")
	done
	[ ${#missing[@]} -gt 0 ] || {
		built=$(cd "$KUBEBUILDER_ASSETS" && pwd)
		return 0
	}
	[ "${missing[*]}" != kube-controller-manager ] ||
		die "KUBEBUILDER_ASSETS ($KUBEBUILDER_ASSETS) has no kube-controller-manager." \
			"The tests need it: its namespace controller and garbage collector are part of what is tested." \
			"Put the one of the same version there: https://dl.k8s.io/VERSION/bin/OS/ARCH/kube-controller-manager" \
			"(VERSION is what \`$KUBEBUILDER_ASSETS/kube-apiserver --version\` says)," \
			"or unset KUBEBUILDER_ASSETS to build everything from source."
	die "KUBEBUILDER_ASSETS ($KUBEBUILDER_ASSETS) lacks: ${missing[*]}." \
		"Point it at a folder with etcd, kube-apiserver, kube-controller-manager and kubectl," \
		"or unset it to build them from source."
}

case ${1:-kube} in
kube) if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then existing; else build kube; fi ;;
capi | node | helm | promtool) build "$1" ;;
all)
	build capi
	echo "$built"
	if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then existing; else build kube; fi
	;;
*)
	sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
echo "$built"
