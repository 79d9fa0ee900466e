//! Reads request bodies within bounds: per body, over all requests, and in time.
//!
//! A review can legitimately exceed 6 MiB and an escaped one 18 MiB, so the limit per body is
//! generous and memory is bounded by the bytes in flight over all requests instead.

use std::{fmt, ops::Deref, pin::pin, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::gauge::ConstGauge,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::metrics::{BodyRefusal, Counted};

/// The semaphore counts KiB, because a `u32` of bytes would end at 4 GiB.
const UNIT: usize = 1024;

/// Time to read on after a refusal when the deadline is already over.
const DISCARD_GRACE: Duration = Duration::from_secs(1);

/// Bounds on request bodies.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Largest body in bytes. Default 32 MiB.
    pub per_body: usize,
    /// Bytes over all requests whose bodies are being read or held. Default 256 MiB; never less
    /// than one largest body.
    pub in_flight: usize,
    /// Time to wait for room and to receive the whole body. Default 10 s.
    pub deadline: Duration,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { per_body: 32 << 20, in_flight: 256 << 20, deadline: Duration::from_secs(10) }
    }
}

/// The room for bodies that all requests share. Clones share it too.
#[derive(Clone, Debug)]
pub struct Budget {
    limits: BodyLimits,
    /// Total size of `room` in units.
    units: u32,
    room: Arc<Semaphore>,
    refused: Counted<BodyRefusal>,
}

impl Budget {
    pub(super) fn new(limits: BodyLimits, refused: Counted<BodyRefusal>) -> Self {
        let units = units(limits.in_flight.max(limits.per_body));
        Self { limits, units, room: Arc::new(Semaphore::new(units as usize)), refused }
    }

    /// Bytes that bodies hold right now, each rounded up to a KiB.
    pub fn bytes_in_flight(&self) -> usize {
        (self.units as usize).saturating_sub(self.room.available_permits()) * UNIT
    }
}

impl Default for Budget {
    /// The default limits, with refusals counted in no registry: for a handler without a server.
    fn default() -> Self {
        Self::new(BodyLimits::default(), Counted::new())
    }
}

impl Collector for Budget {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let bytes = i64::try_from(self.bytes_in_flight()).unwrap_or(i64::MAX);
        let gauge = ConstGauge::new(bytes);
        let metric = encoder.encode_descriptor(
            "body_bytes_in_flight",
            "Bytes of request bodies that are being read or held",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}

/// A body that was read completely. Its room in the budget is given back on drop.
#[derive(Debug)]
pub struct Held {
    bytes: Bytes,
    _room: Room,
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a body was not handed over. As a response it is a status and one line of text, which the
/// API server passes on to the user.
///
/// None carries `Retry-After`: the API server's client would sleep and repeat the call within
/// the same request until its time is used up.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// 400: the client left in the middle or framed the body wrongly.
    #[error("the request body ended early or is malformed; send the request again")]
    Broken,
    /// 503: no room among the bodies in flight before the deadline.
    #[error("too many request bytes are in flight; try again later")]
    Busy,
    /// 408: the body did not arrive in time.
    #[error(
        "the request body did not arrive in time; check the network between the API server and this webhook"
    )]
    Slow,
    /// 413: the body is larger than the limit.
    #[error("the request body exceeds the limit of {limit} bytes; make the object smaller")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

impl Refusal {
    /// The HTTP status of this refusal.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Broken => StatusCode::BAD_REQUEST,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // The rest of the body may still be on its way: this connection has no next request.
        let close = [(header::CONNECTION, "close")];
        (self.status(), close, format!("{self}\n")).into_response()
    }
}

/// Reads the whole body, contiguous, within the budget's limits.
///
/// # Errors
/// See [`Refusal`]; each is counted in `metal3_guard_bodies_refused_total`.
pub async fn read(body: Body, headers: &HeaderMap, budget: &Budget) -> Result<Held, Refusal> {
    read_until(body, headers, budget, None).await
}

/// As [`read`], for a request whose own deadline may come before the budget's.
///
/// # Errors
/// As [`read`].
pub async fn read_until(
    body: Body,
    headers: &HeaderMap,
    budget: &Budget,
    deadline: Option<Instant>,
) -> Result<Held, Refusal> {
    let latest = Instant::now() + budget.limits.deadline;
    let deadline = deadline.map_or(latest, |deadline| deadline.min(latest));
    let result = admit(body, headers, budget, deadline).await;
    if let Err(refusal) = result {
        budget.refused.count(match refusal {
            Refusal::Broken => BodyRefusal::Broken,
            Refusal::Busy => BodyRefusal::Busy,
            Refusal::Slow => BodyRefusal::Slow,
            Refusal::TooLarge { .. } => BodyRefusal::TooLarge,
        });
    }
    result
}

async fn admit(
    mut body: Body,
    headers: &HeaderMap,
    budget: &Budget,
    deadline: Instant,
) -> Result<Held, Refusal> {
    let limit = budget.limits.per_body;
    let mut room = Room::new(budget);
    let result = collect(&mut body, limit, &mut room, deadline).await;
    match result {
        Ok(bytes) => Ok(Held { bytes, _room: room }),
        Err(refusal @ (Refusal::Busy | Refusal::TooLarge { .. })) => {
            drop(room);
            // A client that asked first has sent nothing yet, and will not.
            if !headers.contains_key(header::EXPECT) {
                let deadline = deadline.max(Instant::now() + DISCARD_GRACE);
                discard(body, limit.saturating_mul(2), deadline).await;
            }
            Err(refusal)
        }
        Err(refusal) => Err(refusal),
    }
}

async fn collect(
    body: &mut Body,
    limit: usize,
    room: &mut Room,
    deadline: Instant,
) -> Result<Bytes, Refusal> {
    // HTTP/1 bodies know their length exactly when the client announced it.
    let announced =
        body.size_hint().exact().map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if announced > limit {
        return Err(Refusal::TooLarge { limit });
    }
    room.grow_to(announced, deadline).await?;

    let Some(first) = next(body, deadline).await? else {
        return Ok(Bytes::new());
    };
    admit_length(first.len(), limit, room, deadline).await?;
    if body.is_end_stream() {
        return Ok(first);
    }
    let Some(second) = next(body, deadline).await? else {
        return Ok(first);
    };

    // One frame is the usual case and needs no copy; from the second on they are joined.
    let mut whole = BytesMut::with_capacity(announced.max(first.len() + second.len()));
    whole.extend_from_slice(&first);
    drop(first);
    let mut chunk = Some(second);
    while let Some(bytes) = chunk {
        admit_length(whole.len() + bytes.len(), limit, room, deadline).await?;
        whole.extend_from_slice(&bytes);
        chunk = next(body, deadline).await?;
    }
    Ok(whole.freeze())
}

async fn admit_length(
    length: usize,
    limit: usize,
    room: &mut Room,
    deadline: Instant,
) -> Result<(), Refusal> {
    if length > limit {
        return Err(Refusal::TooLarge { limit });
    }
    room.grow_to(length, deadline).await
}

/// The next piece of data; trailers are passed over.
async fn next(body: &mut Body, deadline: Instant) -> Result<Option<Bytes>, Refusal> {
    loop {
        let frame = in_time(body.frame(), deadline).await.ok_or(Refusal::Slow)?;
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(Refusal::Broken),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads on without keeping anything, so that a client which sends first and reads later gets to
/// see the answer instead of a reset connection.
async fn discard(mut body: Body, bound: usize, deadline: Instant) {
    let mut left = bound;
    while let Ok(Some(bytes)) = next(&mut body, deadline).await {
        match left.checked_sub(bytes.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// One body's share of the budget.
#[derive(Debug)]
struct Room {
    budget: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Room {
    fn new(budget: &Budget) -> Self {
        Self { budget: Arc::clone(&budget.room), held: None }
    }

    /// Makes this share large enough for `bytes`, waiting for others to finish if need be.
    async fn grow_to(&mut self, bytes: usize, deadline: Instant) -> Result<(), Refusal> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = units(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if missing == 0 {
            return Ok(());
        }
        let more = in_time(Arc::clone(&self.budget).acquire_many_owned(missing), deadline)
            .await
            .ok_or(Refusal::Busy)?
            // The semaphore is never closed; were it, there would be no room.
            .map_err(|_| Refusal::Busy)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

/// What `future` gives, if it does so by `deadline`. What is ready at once sets no timer.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>, deadline: Instant) -> Option<T> {
    let mut future = pin!(future);
    if let Some(ready) = future.as_mut().now_or_never() {
        return Some(ready);
    }
    timeout_at(deadline, future).await.ok()
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn budget(per_body: usize, in_flight: usize) -> Budget {
        let limits = BodyLimits { per_body, in_flight, ..BodyLimits::default() };
        Budget::new(limits, Counted::new())
    }

    fn streamed(chunks: &[&'static [u8]]) -> Body {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok::<_, std::io::Error>(*chunk)).collect();
        Body::from_stream(stream::iter(chunks))
    }

    async fn read_all(body: Body, budget: &Budget) -> Result<Held, Refusal> {
        read(body, &HeaderMap::new(), budget).await
    }

    #[tokio::test]
    async fn one_frame_is_not_copied() {
        let bytes = Bytes::from(vec![b'x'; 8 * 1024]);
        let place = bytes.as_ptr();
        let held = read_all(Body::from(bytes), &budget(1 << 20, 1 << 20)).await.unwrap();
        assert_eq!(held.as_ptr(), place);
    }

    #[tokio::test]
    async fn frames_are_joined_in_order() {
        let budget = budget(1 << 20, 1 << 20);
        let cases: [(&[&'static [u8]], &[u8]); 4] =
            [(&[], b""), (&[b"a"], b"a"), (&[b"a", b"", b"bc"], b"abc"), (&[b"", b"", b"d"], b"d")];
        for (chunks, whole) in cases {
            assert_eq!(&*read_all(streamed(chunks), &budget).await.unwrap(), whole);
        }
        assert_eq!(budget.bytes_in_flight(), 0);
    }

    #[tokio::test]
    async fn room_is_held_as_long_as_the_body() {
        let budget = budget(4096, 8192);
        let first = read_all(Body::from(vec![0; 1025]), &budget).await.unwrap();
        assert_eq!(budget.bytes_in_flight(), 2048);
        let second = read_all(streamed(&[&[0; 1000], &[0; 1000]]), &budget).await.unwrap();
        assert_eq!(budget.bytes_in_flight(), 4096);
        drop(first);
        assert_eq!(budget.bytes_in_flight(), 2048);
        drop(second);
        assert_eq!(budget.bytes_in_flight(), 0);
    }

    #[tokio::test]
    async fn the_limit_is_exact_whether_announced_or_not() {
        let budget = budget(4, 1 << 20);
        let too_large = Some(Refusal::TooLarge { limit: 4 });
        for (body, refusal) in [
            (Body::from("four"), None),
            (Body::from("five."), too_large),
            (streamed(&[b"fo", b"ur"]), None),
            (streamed(&[b"five."]), too_large),
            (streamed(&[b"five", b"."]), too_large),
        ] {
            assert_eq!(read_all(body, &budget).await.err(), refusal);
        }
        assert_eq!(budget.bytes_in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_s_own_deadline_comes_first() {
        let budget = budget(1024, 1024);
        let _held = read_all(Body::from(vec![0; 1024]), &budget).await.unwrap();
        let start = Instant::now();
        let deadline = Some(start + Duration::from_secs(2));
        // Nothing can be discarded from a body that never comes, so that takes its second too.
        let body = Body::from_stream(stream::iter([Ok::<_, std::io::Error>("x")]));
        let result = read_until(body, &HeaderMap::new(), &budget, deadline).await;
        assert_eq!(result.err(), Some(Refusal::Busy));
        assert_eq!(start.elapsed().as_secs(), 2);

        let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let late = Some(start + Duration::from_hours(1));
        let result = read_until(body, &HeaderMap::new(), &budget, late).await;
        assert_eq!(result.err(), Some(Refusal::Slow));
        assert_eq!(start.elapsed().as_secs(), 12, "the budget's own deadline is the upper bound");
    }

    #[tokio::test]
    async fn a_broken_body_is_told_apart() {
        let chunks = [Ok("a"), Err(std::io::Error::other("gone"))];
        let body = Body::from_stream(stream::iter(chunks));
        let result = read_all(body, &budget(1024, 1024)).await;
        assert_eq!(result.err(), Some(Refusal::Broken));
    }

    #[test]
    fn a_budget_has_room_for_at_least_one_largest_body() {
        let small = budget(8192, 1024);
        assert_eq!(small.units, 8);
    }

    #[test]
    fn refusals_close_the_connection_and_ask_for_no_retry() {
        for refusal in
            [Refusal::Broken, Refusal::Busy, Refusal::Slow, Refusal::TooLarge { limit: 1 }]
        {
            let response = refusal.into_response();
            assert_eq!(response.status(), refusal.status());
            assert_eq!(response.headers()[header::CONNECTION], "close");
            assert!(!response.headers().contains_key(header::RETRY_AFTER));
        }
    }
}
