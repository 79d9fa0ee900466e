//! What happens when parts fail.
