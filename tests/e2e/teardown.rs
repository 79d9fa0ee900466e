//! Deleting everything at once, in every way that users do.
