//! `clusterctl move` on the source, and Cluster API's controller of Clusters, which is the one
//! that races with it (Cluster API #11812). CAPM3 and the Cluster are paused by then, but that
//! controller puts its finalizer on before it looks at the pause.

use crate::{
    server::{Answer, Run, Who},
    setup::Order,
    world::{Finalizers, Id, Mover, State},
};

/// The three requests for each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Mark,
    Strip,
    Delete,
}

impl Order {
    const fn requests(self) -> [Request; 3] {
        match self {
            Self::StripFirst => [Request::Mark, Request::Strip, Request::Delete],
            Self::DeleteFirst => [Request::Mark, Request::Delete, Request::Strip],
        }
    }
}

impl Mover {
    /// The object that it is at; leaves come first.
    fn id(self) -> Option<Id> {
        Id::all().nth(self.object.into())
    }
}

impl State {
    /// Whether clusterctl has asked for everything that it wants.
    pub(crate) fn moved(&self) -> bool {
        self.mover.is_some_and(|mover| mover.id().is_none())
    }
}

impl Run<'_> {
    /// clusterctl's next request. What it is refused it tries again.
    pub(crate) fn move_on(&mut self) {
        let (Some(mut mover), Some(order)) = (self.state.mover, self.setup.mover) else { return };
        let Some(id) = mover.id() else { return };
        let answer = match order.requests()[usize::from(mover.request)] {
            Request::Mark => self.mark(id),
            Request::Strip => self.set_finalizers(Who::Clusterctl, id, Finalizers::NONE),
            Request::Delete => self.delete(Who::Clusterctl, id),
        };
        match answer {
            Answer::Done => mover.request += 1,
            // What is not there is not in clusterctl's list, or was gone with the request before.
            Answer::Missing => mover.request = 3,
            Answer::Refused | Answer::Exists | Answer::Conflict => {}
        }
        if mover.request == 3 {
            mover = Mover { object: mover.object + 1, request: 0 };
        }
        self.state.mover = Some(mover);
    }

    /// Cluster API's Cluster controller, on its cached copy.
    pub(crate) fn cluster_step(&mut self) {
        let Some(seen) = self.state.cache.meta(Id::Cluster).copied() else { return };
        if !seen.terminating && !seen.finalizers.has(Finalizers::CLUSTER) {
            let wanted = seen.finalizers.with(Finalizers::CLUSTER);
            self.set_finalizers(Who::ClusterApi, Id::Cluster, wanted);
        }
    }
}
