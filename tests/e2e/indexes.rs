//! Writes of status.indexes (rule 4.3).
