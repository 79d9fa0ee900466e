//! The scenarios of `e2e/` with CAPM3's 1.14 CRDs: v1beta1 served, v1beta2 stored.

mod e2e;
mod support;
