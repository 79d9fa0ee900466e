//! `manifests`: what `kubectl kustomize manifests/...` prints, from the binary.
//!
//! The texts are rendered by `manifests/render.sh`; a test compares them with their sources.

use std::io::Write;

use super::{
    Failure, Outcome,
    args::{ManifestsArgs, Overlay},
};

pub(super) fn run(args: &ManifestsArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    out.write_all(rendered(args.overlay).as_bytes())?;
    Ok(Outcome::Good)
}

/// The text of one overlay.
pub(super) const fn rendered(overlay: Overlay) -> &'static str {
    match overlay {
        Overlay::Base => include_str!("../../manifests/rendered/base.yaml"),
        Overlay::SelfManaged => include_str!("../../manifests/rendered/self-managed.yaml"),
        Overlay::CertManager => include_str!("../../manifests/rendered/cert-manager.yaml"),
        Overlay::LocalUrl => include_str!("../../manifests/rendered/local-url.yaml"),
    }
}
