//! Lines on their way to a stream, and the thread that writes them.
//!
//! Each review leaves a line, so lines are kept rather than verdicts hurried: when the stream takes
//! nothing and the queue is full, a writer waits for room. But not for long, because a verdict that
//! comes too late is one too: then lines are dropped, and counted in a line of their own, until the
//! stream moves again. At the end of the program all lines that wait are written.

use std::{
    io::{self, Write},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// How long the first line waits for others, so that a busy guard writes many at once.
const GATHER: Duration = Duration::from_millis(5);
/// How long the end of the program waits for a stream that takes nothing.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a stream that is read slowly may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of lines that may wait.
    pub(super) room: usize,
    /// How long a line waits for room.
    pub(super) patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        // Some ten thousand lines, and a fraction of the shortest timeout of a webhook, 1 s.
        Self { room: 4 << 20, patience: Duration::from_millis(250) }
    }
}

/// Where lines go; clones share the queue.
#[derive(Clone, Debug)]
pub(super) struct Lines(Arc<Queue>);

/// Dropped, it waits until the lines so far are written.
#[derive(Debug)]
#[must_use = "lines may be lost once it is dropped"]
pub(in crate::cli) struct Flush(Arc<Queue>);

#[derive(Debug)]
pub(super) struct Queue {
    bounds: Bounds,
    waiting: Mutex<Waiting>,
    /// Told of everything that somebody waits for.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Whole lines.
    bytes: Vec<u8>,
    /// Lines for which there was no room.
    lost: u64,
    /// A line has waited for room in vain; until there is some, no other need wait.
    stuck: bool,
    /// No more gathering, and the thread ends when nothing waits.
    closing: bool,
    /// The thread has ended.
    done: bool,
}

impl Lines {
    /// A queue, and the thread that writes it to `out`. `lost` makes the line that says how many
    /// lines were lost.
    pub(super) fn new(
        out: impl Write + Send + 'static,
        bounds: Bounds,
        lost: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<(Self, Flush)> {
        let queue = Arc::new(Queue { bounds, waiting: Mutex::default(), changed: Condvar::new() });
        let from = Arc::clone(&queue);
        thread::Builder::new().name("log".into()).spawn(move || from.write_to(out, lost))?;
        Ok((Self(Arc::clone(&queue)), Flush(queue)))
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Queue;

    fn make_writer(&'a self) -> &'a Queue {
        &self.0
    }
}

/// Each call is one whole line: that is how events are written.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.room_for(line.len());
        if waiting.done || self.is_full(&waiting, line.len()) {
            waiting.lost += 1;
        } else {
            waiting.bytes.extend_from_slice(line);
        }
        // The thread is awake already when something waited before.
        if waiting.bytes.len() == line.len() {
            self.changed.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Lines are appended whole, so they are valid whatever their last writer was doing.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line that is larger than the room is taken when it is alone.
    const fn is_full(&self, waiting: &Waiting, length: usize) -> bool {
        !waiting.bytes.is_empty() && waiting.bytes.len() + length > self.bounds.room
    }

    /// Waits for room within bounds.
    fn room_for(&self, length: usize) -> MutexGuard<'_, Waiting> {
        let hopeful =
            |it: &mut Waiting| self.is_full(it, length) && !it.stuck && !it.done && !it.closing;
        let mut waiting = self.lock();
        if !hopeful(&mut waiting) {
            return waiting;
        }
        let (mut waiting, _) = self
            .changed
            .wait_timeout_while(waiting, self.bounds.patience, hopeful)
            .unwrap_or_else(PoisonError::into_inner);
        if self.is_full(&waiting, length) && !waiting.stuck {
            waiting.stuck = true;
            self.changed.notify_all();
        }
        waiting
    }

    fn write_to(&self, mut out: impl Write, lost_line: impl Fn(u64) -> String) {
        let mut bytes = Vec::new();
        loop {
            let idle = |it: &mut Waiting| it.bytes.is_empty() && it.lost == 0 && !it.closing;
            let waiting =
                self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            let (mut waiting, _) = self
                .changed
                .wait_timeout_while(waiting, GATHER, |it| !it.closing)
                .unwrap_or_else(PoisonError::into_inner);
            if waiting.bytes.is_empty() && waiting.lost == 0 {
                waiting.done = true;
                self.changed.notify_all();
                return;
            }
            bytes.clear();
            mem::swap(&mut bytes, &mut waiting.bytes);
            let lost = mem::take(&mut waiting.lost);
            waiting.stuck = false;
            drop(waiting);
            self.changed.notify_all();
            if lost > 0 {
                bytes.extend_from_slice(lost_line(lost).as_bytes());
            }
            // Nobody is left to be told when the log itself cannot be written.
            drop(out.write_all(&bytes));
            drop(out.flush());
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.closing = true;
        self.0.changed.notify_all();
        drop(self.0.changed.wait_timeout_while(waiting, LAST_WORDS, |it| !it.done));
    }
}

#[cfg(test)]
mod tests;
