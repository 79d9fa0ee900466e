//! A client for the cluster that a command was given.

use std::time::Duration;

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::{Failure, args::ClusterArgs};

/// What a command that reads a state can do without a cluster, for [`client`].
pub(super) const OTHER_SOURCES: &str = ", or read files with --state DIR, or try --demo";

/// A client, not yet connected. `instead` ends the advice when there is no cluster.
pub(super) async fn client(args: &ClusterArgs, instead: &str) -> Result<Client, Failure> {
    let options = KubeConfigOptions { context: args.context.clone(), ..Default::default() };
    let mut config = match (&args.kubeconfig, &args.context) {
        (Some(path), _) => {
            let unusable = |error: &dyn std::fmt::Display| {
                Failure::Usage(format!("cannot use kubeconfig {}: {error}", path.display()))
            };
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map_err(|error| unusable(&error))?
        }
        (None, Some(context)) => Config::from_kubeconfig(&options).await.map_err(|error| {
            Failure::Usage(format!("cannot use context {context} of the kubeconfig: {error}"))
        })?,
        (None, None) => Config::infer().await.map_err(|error| {
            Failure::Usage(format!("no cluster: {error}. Name one with --kubeconfig{instead}"))
        })?,
    };
    // Every read has its own deadline, and every watch its own backoff.
    config.connect_timeout = Some(Duration::from_secs(5));
    config.default_retry = false;
    Client::try_from(config)
        .map_err(|error| Failure::Usage(format!("cannot make a client of the cluster: {error}")))
}
