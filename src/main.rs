//! The `metal3-guard` program: see the library for what it does.

use std::process::ExitCode;

// musl's own takes a lock for each allocation: on it a review costs more than half again as much.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The one crypto provider of the process; everything that speaks TLS relies on it. It fails
    // only when another one was installed before, and nothing ran before this line.
    drop(rustls::crypto::ring::default_provider().install_default());
    metal3_guard::cli::run(std::env::args_os())
}
