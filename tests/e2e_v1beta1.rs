//! The scenarios of `e2e/` with CAPM3's 1.8.1 CRDs: v1beta1 only.

mod e2e;
mod support;
