//! A plain-HTTP proxy between one guard and the API server, which can hold back what the guard
//! waits for and counts what it asks.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    body::{Body, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::{
    ControlPlane, User,
    upstream::{Link, Upstream},
};

/// What happens to reads that are no watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// They go on at once.
    Pass,
    /// They go on after a while.
    Slow(Duration),
    /// They go on when this changes.
    Hang,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    /// One object.
    Get,
    /// A page of a list.
    List,
    /// Changes of a list.
    Watch,
    /// Which kinds are served.
    Discover,
    /// Anything that is no read.
    Write,
}

/// A running proxy. Dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    state: Arc<State>,
    kubeconfig: PathBuf,
    _stop: oneshot::Sender<()>,
}

impl Proxy {
    /// Starts one for `user`, on a thread of its own: it may outlive the runtime of a test.
    pub(crate) fn start(plane: &ControlPlane, user: User) -> Result<Self> {
        let original = plane.kubeconfig(user);
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&original)?)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let cluster = config.pointer_mut("/clusters/0/cluster").context("no cluster")?;
        let state = Arc::new(State::new(cluster)?);
        *cluster = json!({"server": format!("http://{address}")});
        let kubeconfig = original.with_extension(format!("proxy-{}", address.port()));
        fs::write(&kubeconfig, config.to_string())?;

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => Ok(()),
                    ended = accept(listener, serving) => ended,
                }
            })
        });
        Ok(Self { state, kubeconfig, _stop: stop })
    }

    /// The user's kubeconfig, with this in place of the API server.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// From here on nothing of a watch arrives, of a new one not even the answer's head.
    pub(crate) fn hold_watches(&self) {
        self.state.held.send_replace(true);
    }

    /// Lets the watches go on with all that was held back.
    pub(crate) fn release_watches(&self) {
        self.state.held.send_replace(false);
    }

    /// Decides on reads that are no watches, those that hang now too.
    pub(crate) fn set_reads(&self, reads: Reads) {
        self.state.reads.send_replace(reads);
    }

    /// Starts counting anew.
    pub(crate) fn forget(&self) {
        self.state.seen().clear();
    }

    /// The requests since then that concern objects of a namespace (empty: of all at once).
    pub(crate) fn count(&self, verb: Verb, namespace: &str) -> usize {
        self.sum(|asked| asked.verb == verb && asked.namespace == namespace)
    }

    /// Those of them for one resource, named in the plural.
    pub(crate) fn count_of(&self, verb: Verb, resource: &str, namespace: &str) -> usize {
        self.sum(|asked| {
            asked.verb == verb && asked.resource == resource && asked.namespace == namespace
        })
    }

    /// The requests since then that were no reads.
    pub(crate) fn writes(&self) -> usize {
        self.sum(|asked| asked.verb == Verb::Write)
    }

    fn sum(&self, counts: impl Fn(&Asked) -> bool) -> usize {
        self.state.seen().iter().filter(|(asked, _)| counts(asked)).map(|(_, n)| n).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    verb: Verb,
    resource: String,
    namespace: String,
}

impl Asked {
    fn of(method: &Method, uri: &Uri) -> Self {
        let parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let within = match parts.as_slice() {
            ["apis", _, _, within @ ..] | ["api", _, within @ ..] => within,
            _ => &[],
        };
        let (namespace, of_resource) = match within {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let watches = uri.query().is_some_and(|it| it.split('&').any(|pair| pair == "watch=true"));
        let verb = match of_resource {
            _ if method != Method::GET => Verb::Write,
            [] => Verb::Discover,
            [_] if watches => Verb::Watch,
            [_] => Verb::List,
            _ => Verb::Get,
        };
        let resource = of_resource.first().copied().unwrap_or_default().into();
        Self { verb, resource, namespace: namespace.into() }
    }
}

#[derive(Debug)]
struct State {
    held: watch::Sender<bool>,
    reads: watch::Sender<Reads>,
    seen: Mutex<BTreeMap<Asked, usize>>,
    upstream: Arc<Upstream>,
}

impl State {
    fn new(cluster: &Value) -> Result<Self> {
        Ok(Self {
            held: watch::Sender::new(false),
            reads: watch::Sender::new(Reads::Pass),
            seen: Mutex::default(),
            upstream: Arc::new(upstream(cluster)?),
        })
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<Asked, usize>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as this request is to wait.
    async fn admit(&self, verb: Verb) {
        match verb {
            Verb::Watch => pass(&mut self.held.subscribe()).await,
            Verb::Get | Verb::List | Verb::Discover => {
                let reads = *self.reads.borrow();
                match reads {
                    Reads::Pass => {}
                    Reads::Slow(pause) => tokio::time::sleep(pause).await,
                    Reads::Hang => {
                        let mut reads = self.reads.subscribe();
                        reads.wait_for(|reads| *reads != Reads::Hang).await.ok();
                    }
                }
            }
            Verb::Write => {}
        }
    }
}

/// The API server, as a kubeconfig describes it.
fn upstream(cluster: &Value) -> Result<Upstream> {
    let text = |key: &str| cluster[key].as_str().with_context(|| format!("no {key}"));
    let Some(address) = text("server")?.strip_prefix("https://") else {
        bail!("the API server is not behind https");
    };
    let ca_pem = fs::read(text("certificate-authority")?)?;
    Upstream::new(address.trim_end_matches('/'), &ca_pem)
}

async fn accept(listener: TcpListener, state: Arc<State>) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            // One connection there for each one here: what breaks there, breaks here.
            let link = Arc::new(Link::new(Arc::clone(&state.upstream)));
            let service =
                service_fn(move |request| forward(Arc::clone(&state), Arc::clone(&link), request));
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // The guard may close it at any time, in the middle of a watch too.
            serving.await.ok();
        });
    }
}

async fn forward(
    state: Arc<State>,
    link: Arc<Link<Incoming>>,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = hyper::Error>>> {
    let asked = Asked::of(request.method(), request.uri());
    let verb = asked.verb;
    *state.seen().entry(asked).or_default() += 1;
    state.admit(verb).await;
    let response = link.send(request).await?;
    let gate = (verb == Verb::Watch).then(|| state.held.subscribe());
    Ok(response.map(|body| gated(body, gate)))
}

/// A body of which nothing goes on while the gate is held.
fn gated(
    body: Incoming,
    gate: Option<watch::Receiver<bool>>,
) -> impl Body<Data = Bytes, Error = hyper::Error> {
    StreamBody::new(stream::unfold((body, gate), |(mut body, mut gate)| async move {
        let frame: Option<Result<Frame<Bytes>, hyper::Error>> = body.frame().await;
        if let Some(gate) = &mut gate {
            pass(gate).await;
        }
        Some((frame?, (body, gate)))
    }))
}

async fn pass(held: &mut watch::Receiver<bool>) {
    // An error means that the proxy is going: then nothing matters any more.
    held.wait_for(|held| !held).await.ok();
}
