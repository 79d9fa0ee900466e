# make demo   serve a made-up state on loopback and print lines to try
# make test   everything that can be tested without a cluster
# make soak   what takes long: random walks through a cluster, longer searches through the model (SEED
#             is their first seed), and what is worth repeating
# make check  what to run before a commit: format, lints, quick tests
# make bench  how fast the rules and a whole review are
# make image  the container image, and an archive of it: see image/build.sh
# make e2e-node  the guard as pods on a real node; takes root, or KUBECONFIG: see tests/node
# make e2e-kind  the same in a cluster that kind makes; takes a container engine
# make e2e-browser  the page of diagnose -o html in Chromium, on screens and on paper; leaves pictures
#             in target/browser
#
# Needs cargo (rustup takes the version in rust-toolchain.toml), curl, python3 and bash.
# CARGO_TARGET_DIR moves the build, ARGS adds arguments to the demo.

CARGO ?= cargo
SEED ?= 1
# Those against an API server mostly wait, so that more of them than there are cores run at once.
E2E = e2e_v1beta1 e2e_v1beta2
E2E_THREADS ?= 5
# The model has a profile of its own.
FOUND = $(patsubst tests/%.rs,%,$(wildcard tests/*.rs)) $(patsubst tests/%/main.rs,%,$(wildcard tests/*/main.rs))
OTHERS = $(filter-out model $(E2E),$(FOUND))
BINARY = $${CARGO_TARGET_DIR:-target}/debug/metal3-guard

.PHONY: demo test soak check bench image e2e-node e2e-kind e2e-browser tools cargo

demo: cargo
	$(CARGO) run --locked -- serve --demo --drain-delay 0 $(ARGS)

test: tools
	$(CARGO) test --locked --lib --bins --examples $(addprefix --test ,$(OTHERS))
	RUST_TEST_THREADS=$(E2E_THREADS) $(CARGO) test --locked $(addprefix --test ,$(E2E))
	$(CARGO) test --locked --doc
	$(CARGO) test --locked --profile soak --test model
	$(CARGO) build --locked
	tests/curl/run.py --self-test
	GUARD_BIN="$(BINARY)" tests/curl/run.py

# A test that has more to do than in make test looks at this variable.
soak: tools
	METAL3_GUARD_SOAK=1 $(CARGO) test --locked --test move --test soak -- --nocapture
	METAL3_GUARD_SOAK=$(SEED) $(CARGO) test --locked --profile soak --test model -- --nocapture

check: cargo
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	$(CARGO) clippy --test model --locked -- -D warnings
	$(CARGO) test --locked --lib

bench: cargo
	$(CARGO) bench --locked

image:
	image/build.sh

e2e-node:
	tests/node/run

e2e-kind:
	tests/node/kind

e2e-browser: cargo
	$(CARGO) build --locked
	GUARD_BIN="$(BINARY)" tests/browser/run

cargo:
	@command -v $(CARGO) >/dev/null || { \
	  echo "$(CARGO) is missing: install Rust with rustup, see https://rustup.rs" >&2; exit 1; }

tools: cargo
	@for tool in bash curl python3; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then echo "make test also needs:$$missing" >&2; exit 1; fi
