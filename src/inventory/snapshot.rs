//! A directory of YAML and JSON as the inventory: the embedded default, needs no cluster.
