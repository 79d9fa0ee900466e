//! What the account of the guard may do, and what not.
