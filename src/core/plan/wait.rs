//! What a plan waits for: that which it cannot change, and which must change first.

use std::fmt;

use super::super::{objects::MOVE_ANNOTATION, verdict::first_three};

/// Something that the plan cannot change, and that must change first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What it is.
    pub cause: WaitCause,
    /// Which objects, finalizers, kinds or Cluster.
    pub names: Vec<Box<str>>,
}

/// The kinds of wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitCause {
    /// `clusterctl move` owns the objects.
    Moving,
    /// The object or its Cluster is paused.
    Paused,
    /// Kinds that the API server does not serve: what is not listed may be there all the same.
    Unserved,
    /// Live machines use the template.
    Machines,
    /// Live claims use the template.
    Claims,
    /// Claims whose machine is gone, and with it whoever would let go of them.
    Machineless,
    /// Claims or Metal3Data are on their way out in the ordinary way.
    Draining,
    /// CAPM3 was woken and did nothing, and there is no stronger step.
    Silent,
    /// Metal3Data whose claim is gone, with its finalizer, while live machines use the template.
    Bound,
    /// IP claims are being released.
    IpClaims,
    /// Finalizers of others.
    ForeignFinalizers,
    /// The template is gone, and these can neither work nor end without it.
    NoTemplate,
    /// Metal3Data without a template or a claim: a person must decide.
    Lost,
}

impl WaitCause {
    /// Whether it ends only when a person, or a controller that is down, does something.
    pub const fn needs_someone(self) -> bool {
        !matches!(self, Self::Moving | Self::Draining | Self::IpClaims)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = first_three(self.names.iter().map(|name| &**name));
        match self.cause {
            WaitCause::Moving => write!(
                f,
                "clusterctl move to finish with {names}; if none is running, remove annotation \
                 {MOVE_ANNOTATION}"
            ),
            WaitCause::Paused => write!(f, "{names} to be unpaused"),
            WaitCause::Unserved => write!(
                f,
                "the API server to serve {names}: until then nothing shows what is in use; if \
                 their CRDs are gone for good, run 'unstick --apply'"
            ),
            WaitCause::Machines => write!(f, "live machines that use it to be deleted: {names}"),
            WaitCause::Claims => write!(f, "live claims that use it to be deleted: {names}"),
            WaitCause::Machineless => {
                write!(f, "someone to end claims whose Metal3Machine is gone: {names}")
            }
            WaitCause::Draining => write!(f, "CAPM3 to finish {names}"),
            WaitCause::Silent => write!(
                f,
                "CAPM3 to react: it was woken and has done nothing; see whether it runs: {names}"
            ),
            WaitCause::Bound => write!(
                f,
                "someone to free what kept its claim's finalizer, which is not done by itself \
                 while live machines use the template: {names}"
            ),
            WaitCause::IpClaims => write!(f, "IP claims to be released: {names}"),
            WaitCause::ForeignFinalizers => {
                write!(f, "the owners of other finalizers to remove them: {names}")
            }
            WaitCause::NoTemplate => {
                write!(f, "the template to be made again, for what needs it: {names}")
            }
            WaitCause::Lost => write!(
                f,
                "someone to run 'unstick --apply': the template of {names} is gone and CAPM3 waits \
                 for it for ever"
            ),
        }
    }
}
