//! A model of what the guard is for, searched through and through: an API server, CAPM3's
//! controllers with their caches and queues, people, `clusterctl move`, and two guards, whose
//! rules are those of `metal3_guard::core` themselves.

#![expect(clippy::cast_possible_truncation, reason = "every number here is below N")]

#[cfg(test)]
mod capm3;
#[cfg(test)]
mod checks;
#[cfg(test)]
mod each_rule;
#[cfg(test)]
mod end;
#[cfg(test)]
mod events;
#[cfg(test)]
mod guard;
#[cfg(test)]
mod holds;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod mover;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod search;
#[cfg(test)]
mod server;
#[cfg(test)]
mod setup;
#[cfg(test)]
mod text;
#[cfg(test)]
mod unguarded;
#[cfg(test)]
mod walks;
#[cfg(test)]
mod world;
