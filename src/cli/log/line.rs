//! How a text line looks: as `tracing_subscriber` writes it without colours, in a third of the time.

use std::fmt;

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FormatFields, format::Writer, time::FormatTime},
};

/// The time in UTC, to the microsecond.
pub(super) struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.6}", Timestamp::now())
    }
}

/// The message, then `name=value` for each field.
pub(super) struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line { writer, result: Ok(()), started: false };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'writer> {
    writer: Writer<'writer>,
    result: fmt::Result,
    started: bool,
}

impl Line<'_> {
    fn write(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        if self.result.is_ok() {
            self.result = self.start(field.name()).and_then(|()| value(&mut self.writer));
        }
    }

    fn start(&mut self, name: &str) -> fmt::Result {
        if std::mem::replace(&mut self.started, true) {
            self.writer.write_char(' ')?;
        }
        if name == "message" {
            return Ok(());
        }
        self.writer.write_str(name)?;
        self.writer.write_char('=')
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, |writer| write!(writer, "{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if !value.bytes().all(plain) {
            return self.record_debug(field, &value);
        }
        self.write(field, |writer| {
            writer.write_char('"')?;
            writer.write_str(value)?;
            writer.write_char('"')
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder, format};

    use super::*;

    type Bytes = Arc<Mutex<Vec<u8>>>;

    struct Memory(Bytes);

    impl<'a> MakeWriter<'a> for Memory {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            Self(Arc::clone(&self.0))
        }
    }

    impl std::io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn log() {
        tracing::info!(
            text = "plain",
            odd = "a \"b\" \\ \n \u{1b}[0m \u{e4}",
            empty = "",
            number = 5_u64,
            negative = -5,
            flag = true,
            none = None::<u16>,
            some = Some(403),
            shown = %"as is",
            debugged = ?["x"],
            "what {}",
            "happened"
        );
        tracing::warn!("only a message");
        tracing::error!(only = "a field");
    }

    fn lines<N, F>(
        change: impl FnOnce(
            SubscriberBuilder<format::DefaultFields, format::Format<format::Full, ()>>,
        ) -> SubscriberBuilder<N, F>,
    ) -> String
    where
        SubscriberBuilder<N, F, tracing::level_filters::LevelFilter, Memory>:
            Into<tracing::Dispatch>,
    {
        let bytes = Bytes::default();
        let log_to = change(tracing_subscriber::fmt().with_ansi(false).without_time())
            .with_writer(Memory(Arc::clone(&bytes)));
        tracing::dispatcher::with_default(&log_to.into(), log);
        let bytes = bytes.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_are_those_of_the_usual_format() {
        let usual = lines(|builder| builder);
        assert_eq!(usual.lines().count(), 3);
        assert_eq!(lines(|builder| builder.fmt_fields(Fields)), usual);
    }

    #[test]
    fn times_sort_as_text() {
        let mut text = String::new();
        Clock.format_time(&mut Writer::new(&mut text)).unwrap();
        assert_eq!(text.len(), "2026-12-01T05:39:15.000000Z".len(), "{text}");
        assert!(text.ends_with('Z') && text.parse::<Timestamp>().is_ok(), "{text}");
    }
}
