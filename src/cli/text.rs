//! Text for a tired operator: aligned columns, ages in words, no colour.

use std::io::{self, Write};

use jiff::Timestamp;

/// Rows of cells, padded to the widest of each column; the last column is never padded.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(|cell| one_line(&cell.into())).collect());
    }

    pub(super) fn write(&self, out: &mut impl Write, indent: usize) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widths: Vec<_> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
            })
            .collect();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(width.saturating_sub(cell.chars().count()) + 2));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The time, in whole seconds: more says nothing to a person.
pub(super) fn now() -> Timestamp {
    let now = Timestamp::now();
    // Every second that a timestamp lies in is one as well.
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// How long ago, in the largest unit that says enough: `40 s`, `12 min`, `18 h`, `3 d`.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs();
    match seconds {
        ..0 => "in the future".into(),
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// `2026-12-01T05:41:06Z (18 h)`, or that the time is not known.
pub(super) fn since(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "an unknown time".into(), |at| format!("{at} ({})", age(at, now)))
}

/// Text from objects and people may hold anything; a terminal gets no control characters.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A word for a shell to copy: quoted when it holds anything that a shell may take for more.
pub(super) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", one_line(text).replace('\'', r"'\''"))
}

/// Widest line of running text, the indent included; a longer word stands alone.
const WIDTH: usize = 100;

/// A message as one paragraph of [`one_line`] words.
pub(super) fn paragraph(out: &mut impl Write, text: &str, indent: usize) -> io::Result<()> {
    let mut line = String::new();
    for word in one_line(text).split_whitespace() {
        let length = indent + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && length > WIDTH {
            writeln!(out, "{:indent$}{line}", "")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{:indent$}{line}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_escapes() {
        let mut table = Table::default();
        table.row(["Metal3Data/a", "x"]);
        table.row(["Metal3Machine/long", "\u{1b}[2Jy\n"]);
        let mut out = Vec::new();
        table.write(&mut out, 2).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "  Metal3Data/a        x\n  Metal3Machine/long   [2Jy\n");
    }

    #[test]
    fn what_is_copied_into_a_shell_stays_one_word() {
        for (text, word) in [
            ("metal3data/w-0", "metal3data/w-0"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's;\n", r"'it'\''s; '"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn paragraphs_break_between_words() {
        let mut out = Vec::new();
        let long = "n".repeat(150);
        paragraph(&mut out, &format!("{} {long} end\u{7}", "word ".repeat(30)), 4).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], format!("    {}", ["word"; 19].join(" ")));
        assert_eq!(lines[1], format!("    {}", ["word"; 11].join(" ")));
        assert_eq!(lines[2], format!("    {long}"));
        assert_eq!(lines[3], "    end");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn ages_use_the_unit_that_says_enough() {
        let now: Timestamp = "2026-12-02T00:00:00Z".parse().unwrap();
        for (since, text) in [
            ("2026-12-01T23:59:20Z", "40 s"),
            ("2026-12-01T23:48:00Z", "12 min"),
            ("2026-12-01T06:00:00Z", "18 h"),
            ("2026-11-29T00:00:00Z", "3 d"),
            ("2026-12-02T00:00:01Z", "in the future"),
        ] {
            assert_eq!(age(since.parse().unwrap(), now), text);
        }
    }
}
