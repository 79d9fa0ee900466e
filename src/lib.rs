//! metal3-guard decides whether Metal3 objects may be deleted, finalized and referenced.
//!
//! ```text
//! API server --AdmissionReview/HTTPS--> server -> admission -> core <- controller --writes--> API server
//!                                                    |          ^          ^
//!                                                    v          |          |
//!                                                 inventory (index + live reads | snapshot directory)
//!                                                               |
//!                                            cli: review, can-delete, diagnose, unstick
//! ```
//!
//! `core` decides everything and does no I/O; the modules around it are thin. `certificates` makes
//! what the server shows, and keeps it fresh in a cluster.

pub mod admission;
pub mod certificates;
pub mod cli;
pub mod controller;
pub mod core;
pub mod inventory;
pub mod server;
