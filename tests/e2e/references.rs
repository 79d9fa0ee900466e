//! New references to a template (rule 4.4).
