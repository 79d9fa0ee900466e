//! A TCP proxy that puts distance between a client and the API server: every byte arrives half a
//! round trip late, in both directions, and as many as there are may be on their way.

use std::{
    fs,
    io::Result as IoResult,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{ControlPlane, User};

/// A running proxy. Dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Delay {
    kubeconfig: PathBuf,
    _tasks: JoinSet<()>,
}

impl Delay {
    /// Starts one in front of the API server of `plane`, for `user`.
    pub(crate) async fn start(
        plane: &ControlPlane,
        user: User,
        round_trip: Duration,
    ) -> Result<Self> {
        let original = plane.kubeconfig(user);
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&original)?)?;
        let server = config.pointer_mut("/clusters/0/cluster/server").context("no server")?;
        let far = server.as_str().and_then(|url| url.strip_prefix("https://"));
        let far = far.context("the API server is not behind https")?.to_owned();

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let near = listener.local_addr()?;
        *server = json!(format!("https://{near}"));
        let kubeconfig = original.with_extension(format!("delay-{}", near.port()));
        fs::write(&kubeconfig, config.to_string())?;

        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                open.spawn(pass_on(client, far.clone(), round_trip));
                while open.try_join_next().is_some() {}
            }
        });
        Ok(Self { kubeconfig, _tasks: tasks })
    }

    /// The user's kubeconfig, with this in place of the API server.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

async fn pass_on(client: TcpStream, far: String, round_trip: Duration) -> IoResult<()> {
    // To connect takes a round trip of its own.
    sleep(round_trip).await;
    let server = TcpStream::connect(far).await?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The end of one direction is not the end of the other.
    let there = late(from_client, to_server, round_trip / 2);
    let back = late(from_server, to_client, round_trip / 2);
    tokio::try_join!(there, back).map(drop)
}

async fn late(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pause: Duration,
) -> IoResult<()> {
    let (leave, mut under_way) = mpsc::unbounded_channel();
    let leaving = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let read = from.read(&mut buffer).await?;
            let bytes = buffer.get(..read).unwrap_or_default().to_vec();
            if leave.send((Instant::now() + pause, bytes)).is_err() || read == 0 {
                return Ok(());
            }
        }
    };
    let arriving = async {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due).await;
            if bytes.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::try_join!(leaving, arriving).map(drop)
}
