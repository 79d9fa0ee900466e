# The image of metal3-guard: one static program and nothing else. `make image` builds it.
ARG RUST_IMAGE=docker.io/library/rust:1.95.0-slim-bookworm
ARG BASE_IMAGE=scratch

FROM ${RUST_IMAGE} AS build
WORKDIR /src
# The allocator and `ring` have C in them; musl itself is Rust's own, but not its headers.
RUN command -v musl-gcc || { apt-get update && apt-get install -y --no-install-recommends musl-tools; }
COPY rust-toolchain.toml Cargo.toml Cargo.lock ./
COPY benches benches
COPY src src
COPY manifests/rendered manifests/rendered
RUN target="$(uname -m)-unknown-linux-musl" \
    && rustup target add "$target" \
    && export "CC_$(echo "$target" | tr - _)=cc" RUSTFLAGS="-C target-feature=+crt-static" \
    && cargo build --locked --release --target "$target" \
    && mkdir /out && cp "target/$target/release/metal3-guard" /out/

FROM ${BASE_IMAGE}
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="metal3-guard" \
      org.opencontainers.image.description="Admission webhook that keeps Metal3DataTemplates from getting stuck, and says what blocks what" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/metal3-guard /metal3-guard
# Nobody: no account of a host has this number. Nothing is written to the file system.
USER 65532:65532
WORKDIR /
EXPOSE 8443 8080
ENTRYPOINT ["/metal3-guard"]
