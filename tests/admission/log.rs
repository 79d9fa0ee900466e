//! The log of the guards in this process, caught per thread: each test has a thread of its own.

use std::{cell::RefCell, io, sync::Once};

use tracing_subscriber::filter::LevelFilter;

thread_local! {
    static CAUGHT: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Installs the one subscriber, before the first guard writes a line: one that came later could
/// miss lines that other tests are writing at that moment.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(|| ThreadLog)
            .init();
    });
}

/// Begins to catch what this thread logs.
pub(crate) fn catch() {
    CAUGHT.with_borrow_mut(|caught| *caught = Some(Vec::new()));
}

/// What this thread has logged since [`catch`].
pub(crate) fn caught() -> String {
    String::from_utf8(CAUGHT.take().unwrap()).unwrap()
}

struct ThreadLog;

impl io::Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        CAUGHT.with_borrow_mut(|caught| {
            if let Some(caught) = caught {
                caught.extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
