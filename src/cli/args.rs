//! What a person may type. Checked and turned into settings by each subcommand.

use std::{net::IpAddr, net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::FalseyValueParser};
use clap_complete::Shell;
use jiff::SignedDuration;

use crate::core::plan::Timing;

mod managed;

pub(super) use self::managed::{ManagedCertsArgs, SecretArg};

/// Keeps Metal3DataTemplates from getting stuck, and says what blocks what.
#[derive(Debug, Parser)]
#[command(name = "metal3-guard", version, about, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Answer admission reviews over HTTPS.
    Serve(Box<ServeArgs>),
    /// Put AdmissionReviews to the rules and print the verdicts.
    Review(ReviewArgs),
    /// Say whether a template may be deleted now, and what holds it.
    CanDelete(CanDeleteArgs),
    /// Say what holds what, the oldest trouble first, and the next step for each.
    Diagnose(DiagnoseArgs),
    /// Print the plan that frees a stuck template, or carry it out.
    Unstick(UnstickArgs),
    /// Make a CA and a serving certificate for tests and demos.
    Certs(CertsArgs),
    /// Say whether the guard is installed as this version expects, and what to do if not.
    Doctor(DoctorArgs),
    /// Print what to apply to a cluster for the guard to work in it.
    Manifests(ManifestsArgs),
    /// Print a completion script.
    Completions {
        /// The shell to complete for.
        shell: Shell,
    },
}

/// Where the facts come from: a cluster, unless a directory or the sample state is asked for.
/// What excludes what is checked by value, because a flag's variable may also say `false`.
#[derive(Args, Clone, Debug)]
pub(super) struct StateArgs {
    /// Read the objects from this directory (or file) of YAML and JSON instead of a cluster.
    #[arg(long, value_name = "DIR", env = "METAL3_GUARD_STATE")]
    pub(super) state: Option<PathBuf>,
    /// Use the built-in sample state instead of a cluster.
    #[arg(long, env = "METAL3_GUARD_DEMO", value_parser = FalseyValueParser::new())]
    pub(super) demo: bool,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// Which cluster to talk to.
#[derive(Args, Clone, Debug)]
pub(super) struct ClusterArgs {
    /// Kubeconfig of the cluster (default: KUBECONFIG, ~/.kube/config, or the pod's own account).
    #[arg(long, value_name = "FILE", env = "METAL3_GUARD_KUBECONFIG")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME", env = "METAL3_GUARD_CONTEXT")]
    pub(super) context: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For a person.
    #[default]
    Text,
    /// For a program.
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// One readable line for each event.
    #[default]
    Text,
    /// One JSON object for each event.
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum AdditionsArg {
    /// Refuse the write.
    #[default]
    Deny,
    /// Let the write go on without them.
    Strip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ControllerArg {
    /// Nothing.
    Off,
    /// Say what would be done, in the log, in Events and in metrics.
    Observe,
    /// Wake the owner, and repair what that does not free.
    Act,
}

/// How long to wait for the owners of objects.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct TimingArgs {
    /// Without progress for this long, an object's owner is woken; then again after twice as long.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5s",
        value_parser = pause,
        env = "METAL3_GUARD_WAKE_AFTER"
    )]
    pub(super) wake_after: SignedDuration,
    /// Without progress for this long, orphans are repaired and stale indexes removed.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "60s",
        value_parser = pause,
        env = "METAL3_GUARD_GRACE"
    )]
    pub(super) grace: SignedDuration,
    /// After the grace period, how long until a template that nothing needs is released.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = pause,
        env = "METAL3_GUARD_RELEASE_AFTER"
    )]
    pub(super) release_after: SignedDuration,
}

impl TimingArgs {
    pub(super) fn timing(&self) -> Timing {
        Timing {
            wake: self.wake_after,
            grace: self.grace,
            release: self.release_after,
            ..Timing::default()
        }
    }
}

/// A time such as `90s` or `2m`, more than nothing and at most an hour.
fn pause(text: &str) -> Result<SignedDuration, String> {
    let hint = "write it like 90s or 2m";
    let pause: SignedDuration = text.parse().map_err(|_| format!("not a time; {hint}"))?;
    if pause <= SignedDuration::ZERO || pause > SignedDuration::from_hours(1) {
        return Err(format!("not between 0 and one hour; {hint}"));
    }
    Ok(pause)
}

#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) state: StateArgs,
    /// Address of the webhooks (default 0.0.0.0:8443; with --demo 127.0.0.1:8443).
    #[arg(long, value_name = "ADDR", env = "METAL3_GUARD_LISTEN")]
    pub(super) listen: Option<SocketAddr>,
    /// Address of probes and metrics, plain HTTP (default 0.0.0.0:8080; with --demo
    /// 127.0.0.1:8080).
    #[arg(long, value_name = "ADDR", env = "METAL3_GUARD_ADMIN_LISTEN")]
    pub(super) admin_listen: Option<SocketAddr>,
    /// PEM file with the certificate chain, the server's own certificate first.
    #[arg(long, value_name = "FILE", env = "METAL3_GUARD_TLS_CERT", requires = "tls_key")]
    pub(super) tls_cert: Option<PathBuf>,
    /// PEM file with the private key.
    #[arg(long, value_name = "FILE", env = "METAL3_GUARD_TLS_KEY", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub(super) managed: ManagedCertsArgs,
    /// PEM file with the CA of the API servers; when set, clients must show a certificate.
    #[arg(long, value_name = "FILE", env = "METAL3_GUARD_CLIENT_CA")]
    pub(super) client_ca: Option<PathBuf>,
    /// Name (CN or DNS) that a client's certificate may have; any when not given.
    #[arg(
        long,
        value_name = "NAME",
        env = "METAL3_GUARD_CLIENT_NAME",
        value_delimiter = ',',
        requires = "client_ca"
    )]
    pub(super) client_name: Vec<String>,
    /// What to do with a finalizer that may not be added.
    #[arg(long, value_enum, default_value_t, env = "METAL3_GUARD_FINALIZER_ADDITIONS")]
    pub(super) finalizer_additions: AdditionsArg,
    /// What the controller does about what is stuck (default act; with --state or --demo it is off).
    #[arg(long, value_enum, env = "METAL3_GUARD_CONTROLLER")]
    pub(super) controller: Option<ControllerArg>,
    #[command(flatten)]
    pub(super) timing: TimingArgs,
    /// Seconds to go on accepting after SIGTERM, until no API server sends here any more.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, env = "METAL3_GUARD_DRAIN_DELAY")]
    pub(super) drain_delay: u32,
    /// Form of the log on standard error.
    #[arg(long, value_enum, default_value_t, env = "METAL3_GUARD_LOG")]
    pub(super) log: LogFormat,
    /// What to log: error, warn, info, debug, or a filter such as info,rustls=debug.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "METAL3_GUARD_LOG_LEVEL")]
    pub(super) log_level: String,
    /// Where --demo keeps its throw-away certificates.
    #[arg(long, value_name = "DIR", default_value = "certs/dev", env = "METAL3_GUARD_DEMO_CERTS")]
    pub(super) demo_certs: PathBuf,
}

#[derive(Args, Debug)]
pub(super) struct ReviewArgs {
    /// Files with AdmissionReviews, JSON or YAML; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) state: StateArgs,
    /// Ask only the hook on this path, whatever its rules.
    #[arg(long, value_name = "PATH")]
    pub(super) path: Option<String>,
    /// What to do with a finalizer that may not be added.
    #[arg(long, value_enum, default_value_t)]
    pub(super) finalizer_additions: AdditionsArg,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Output,
}

#[derive(Args, Debug)]
pub(super) struct CanDeleteArgs {
    /// The Metal3DataTemplate.
    pub(super) name: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub(super) namespace: String,
    #[command(flatten)]
    pub(super) state: StateArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DiagnoseOutput {
    /// For a person.
    #[default]
    Text,
    /// For a program.
    Json,
    /// A graph of what holds what, for Graphviz.
    Dot,
    /// One page for a browser or for paper, with the same graph.
    Html,
}

#[derive(Args, Debug)]
pub(super) struct DiagnoseArgs {
    /// Only this Metal3DataTemplate.
    pub(super) name: Option<String>,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub(super) namespace: String,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    pub(super) all_namespaces: bool,
    #[command(flatten)]
    pub(super) state: StateArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: DiagnoseOutput,
    /// Look again and again, until Ctrl-C, and print what has changed.
    #[arg(short, long)]
    pub(super) watch: bool,
}

#[derive(Args, Debug)]
pub(super) struct UnstickArgs {
    /// The Metal3DataTemplate; it need not exist any more.
    pub(super) name: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub(super) namespace: String,
    /// Carry the plan out, a step at a time, each from a new look.
    #[arg(long, requires = "reason")]
    pub(super) apply: bool,
    /// Why; it stands in the Events and in what is printed.
    #[arg(long, value_name = "TEXT", requires = "apply")]
    pub(super) reason: Option<String>,
    /// With --apply: go on until the template and its Metal3Data are gone.
    #[arg(long, requires = "apply")]
    pub(super) wait: bool,
    #[command(flatten)]
    pub(super) timing: TimingArgs,
    #[command(flatten)]
    pub(super) state: StateArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Output,
}

#[derive(Args, Debug)]
pub(super) struct CertsArgs {
    /// Directory for ca.crt, tls.crt and tls.key; made when missing.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// DNS name of the server; may be given more than once.
    #[arg(long, value_name = "NAME")]
    pub(super) dns: Vec<String>,
    /// IP address of the server; may be given more than once.
    #[arg(long, value_name = "ADDR")]
    pub(super) ip: Vec<IpAddr>,
    /// Replace files that are there.
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Args, Debug)]
pub(super) struct ManifestsArgs {
    /// How the guard is reached and where its certificate comes from.
    #[arg(long, value_enum, default_value_t)]
    pub(super) overlay: Overlay,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Overlay {
    /// In the cluster; the Secret metal3-guard-tls and the caBundle are yours to make.
    #[default]
    Base,
    /// In the cluster; the guard makes its certificates and the caBundle by itself.
    SelfManaged,
    /// In the cluster, with certificates from cert-manager.
    CertManager,
    /// Outside the cluster: webhooks that call 127.0.0.1:8443, and an account, no server.
    LocalUrl,
}

#[derive(Args, Debug)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    /// What the guard's controller is set to: only to act, it needs rights to write.
    #[arg(long, value_enum, default_value = "act", env = "METAL3_GUARD_CONTROLLER")]
    pub(super) controller: ControllerArg,
    /// Also ask a running guard's port for probes and metrics (kubectl port-forward reaches it).
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) certs: SecretArg,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Output,
}
