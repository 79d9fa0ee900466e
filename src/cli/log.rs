//! The log on standard error, written by a thread of its own.
//!
//! A line costs the request that logs it a copy into memory, not a system call; the thread writes
//! what has come together. And whoever reads standard error cannot hold up a verdict: when it does
//! not read, lines wait in memory up to a bound and are then dropped and counted. At the end of the
//! program all lines that wait are written, as long as somebody reads them.

use std::{
    fmt,
    io::{self, Write},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use super::{Failure, args::LogFormat};

mod line;

use line::{Clock, Fields};

/// Bytes of lines that may wait: some ten thousand lines.
const ROOM: usize = 4 << 20;
/// How long the first line waits for others, so that a busy guard writes many at once.
const GATHER: Duration = Duration::from_millis(5);
/// How long the end of the program waits for a reader of standard error.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Logs to standard error from here on, until the result is dropped.
pub(super) fn start(format: LogFormat, filter: &str) -> Result<Flush, Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::Usage(format!("--log-level {filter:?}: {error}; try error, warn, info or debug"))
    })?;
    let cannot =
        |error: &dyn fmt::Display| Failure::Unverified(format!("cannot start the log: {error}"));
    let (lines, flush) = Lines::new(io::stderr(), ROOM).map_err(|error| cannot(&error))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines)
        .with_timer(Clock)
        .with_ansi(false)
        .with_target(false);
    let started = match format {
        LogFormat::Text => log.fmt_fields(Fields).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|error| cannot(&error))?;
    Ok(flush)
}

/// Dropped, it waits until the lines so far are written.
#[derive(Debug)]
#[must_use = "lines may be lost once it is dropped"]
pub(super) struct Flush(Arc<Queue>);

/// Where lines go; clones share the queue.
#[derive(Clone, Debug)]
struct Lines(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    room: usize,
    waiting: Mutex<Waiting>,
    /// Told when there is something for the thread, and when it is done.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Whole lines.
    bytes: Vec<u8>,
    /// Lines for which there was no room.
    lost: u64,
    /// No more gathering, and the thread ends when nothing waits.
    closing: bool,
    /// The thread has ended.
    done: bool,
}

impl Lines {
    /// A queue of at most `room` bytes, and the thread that writes it to `out`.
    fn new(out: impl Write + Send + 'static, room: usize) -> io::Result<(Self, Flush)> {
        let queue = Arc::new(Queue { room, waiting: Mutex::default(), changed: Condvar::new() });
        let from = Arc::clone(&queue);
        thread::Builder::new().name("log".into()).spawn(move || from.write_to(out))?;
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
        let mut waiting = self.lock();
        if waiting.done || waiting.bytes.len() + line.len() > self.room {
            waiting.lost += 1;
        } else {
            waiting.bytes.extend_from_slice(line);
            // The thread is awake already when something waited before.
            if waiting.bytes.len() == line.len() {
                self.changed.notify_all();
            }
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

    fn write_to(&self, mut out: impl Write) {
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
            drop(waiting);
            // Nobody is left to be told when the log itself cannot be written.
            drop(out.write_all(&bytes));
            if lost > 0 {
                drop(writeln!(
                    out,
                    "{lost} log lines were lost: standard error is read too slowly"
                ));
            }
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
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Hands over what is written, each piece when it is asked for.
    struct Piecewise(mpsc::SyncSender<Vec<u8>>);

    impl Write for Piecewise {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_of_every_thread_is_there_at_the_end() {
        let out = Shared::default();
        let (lines, flush) = Lines::new(out.clone(), ROOM).unwrap();
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                let lines = lines.clone();
                thread::spawn(move || {
                    for line in 0..1000 {
                        let line = format!("{thread} {line}\n");
                        lines.make_writer().write_all(line.as_bytes()).unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        drop(flush);
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        for thread in 0..4 {
            let of_thread: Vec<_> =
                text.lines().filter(|line| line.starts_with(&format!("{thread} "))).collect();
            let expected: Vec<_> = (0..1000).map(|line| format!("{thread} {line}")).collect();
            assert_eq!(of_thread, expected);
        }
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_but_holds_up_nobody() {
        let (sender, reader) = mpsc::sync_channel(0);
        let (lines, flush) = Lines::new(Piecewise(sender), 10).unwrap();
        lines.make_writer().write_all(b"first\n").unwrap();
        // Taken by the thread, which now waits for the reader.
        while !lines.0.lock().bytes.is_empty() {
            thread::yield_now();
        }
        lines.make_writer().write_all(b"second\n").unwrap();
        lines.make_writer().write_all(b"third\n").unwrap();
        lines.make_writer().write_all(b"4th\n").unwrap();
        let reading = thread::spawn(move || reader.into_iter().collect::<Vec<_>>().concat());
        drop(flush);
        drop(lines);
        let text = String::from_utf8(reading.join().unwrap()).unwrap();
        assert_eq!(
            text,
            "first\nsecond\n2 log lines were lost: standard error is read too slowly\n"
        );
    }

    #[test]
    fn a_stream_that_is_closed_does_not_keep_the_program() {
        let (sender, reader) = mpsc::sync_channel(0);
        drop(reader);
        let (lines, flush) = Lines::new(Piecewise(sender), ROOM).unwrap();
        lines.make_writer().write_all(b"unheard\n").unwrap();
        drop(flush);
        assert!(lines.0.lock().done);
    }
}
