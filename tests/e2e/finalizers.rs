//! Finalizers that are added (rule 4.2).
