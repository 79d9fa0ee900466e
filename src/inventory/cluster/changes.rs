//! Where something changed: the index's word to whoever acts on it.

use std::{collections::BTreeSet, mem};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The namespaces whose index changed since they were last taken.
#[derive(Debug, Default)]
pub struct Changes {
    namespaces: Mutex<BTreeSet<Box<str>>>,
    noted: Notify,
}

impl Changes {
    pub(super) fn note(&self, namespace: &str) {
        let mut namespaces = self.namespaces.lock();
        if !namespaces.contains(namespace) {
            namespaces.insert(namespace.into());
            // Keeps one permit when nobody waits, so no change between two takes is missed.
            self.noted.notify_one();
        }
    }

    /// Returns once a namespace has changed. For one listener.
    pub async fn noted(&self) {
        self.noted.notified().await;
    }

    /// Takes the namespaces that changed.
    pub fn take(&self) -> BTreeSet<Box<str>> {
        mem::take(&mut *self.namespaces.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_noted_is_missed_or_told_twice() {
        let changes = Changes::default();
        for namespace in ["b", "a", "b"] {
            changes.note(namespace);
        }
        changes.noted().await;
        assert_eq!(changes.take().into_iter().collect::<Vec<_>>(), ["a".into(), "b".into()]);
        assert_eq!(changes.take(), BTreeSet::new());
        changes.note("a");
        changes.noted().await;
        assert_eq!(changes.take().len(), 1);
    }
}
