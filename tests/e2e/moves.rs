//! clusterctl move, as recorded.
