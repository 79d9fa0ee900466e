//! Verdicts while the watches lag.
