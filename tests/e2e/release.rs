//! Releasing a template (rule 4.5).
