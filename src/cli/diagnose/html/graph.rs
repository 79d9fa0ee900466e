//! The graph of what names a template, drawn.

use std::io;

use jiff::Timestamp;

use super::{
    super::{super::text, TemplateReport},
    Escaped, class,
};
use crate::core::diagnosis::Holder;

/// Holders that are drawn for one template; the others are only named.
const DRAWN: usize = 40;

/// Characters in a line of a box: what fits on the smallest screen in letters that can be read.
const COLUMNS: usize = 54;

/// The template, and under it what names it, each on a branch of one trunk. Each box is a drawing of
/// its own, or paper would end in the middle of one.
pub(super) fn write(
    template: &TemplateReport,
    now: Timestamp,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let (drawn, more) = template.holders.split_at(template.holders.len().min(DRAWN));
    writeln!(
        out,
        "<div class=\"graph\" role=\"group\" aria-label=\"What names {}\">",
        Escaped(&template.name)
    )?;
    let name = format!("Metal3DataTemplate/{}", template.name);
    draw(class(template.health), &lines(&name), Branch::Root, out)?;
    for (row, Holder { kind, name, role, terminating, .. }) in drawn.iter().enumerate() {
        let mut said = lines(&format!("{kind}/{name}"));
        let age = terminating.map(|at| format!(", terminating {}", text::age(at, now)));
        said.append(&mut lines(&format!("{role}{}", age.unwrap_or_default())));
        let look = if terminating.is_some() { "going" } else { "" };
        let branch = if row + 1 == drawn.len() { Branch::Last } else { Branch::More };
        draw(look, &said, branch, out)?;
    }
    if !more.is_empty() {
        let names: Vec<_> = more.iter().map(|it| format!("{}/{}", it.kind, it.name)).collect();
        writeln!(out, "<p>And {} more: {}.</p>", more.len(), Escaped(&names.join(", ")))?;
    }
    writeln!(out, "</div>")
}

/// Where a box is on the trunk.
#[derive(Clone, Copy, PartialEq)]
enum Branch {
    Root,
    More,
    Last,
}

/// One box. Its lines of text are as wide as they are long, in letters of one width.
fn draw(look: &str, said: &[String], at: Branch, out: &mut impl io::Write) -> io::Result<()> {
    const LINE: usize = 16;
    let (left, top) = if at == Branch::Root { (0, 0) } else { (24, 6) };
    let height = said.len() * LINE + 8;
    let (middle, bottom) = (top + height / 2, top + height + 1);
    write!(out, "<svg viewBox=\"0 0 440 {bottom}\">")?;
    if at != Branch::Root {
        let end = if at == Branch::Last { middle } else { bottom };
        write!(out, "<path d=\"M 12.5 0 V {end} M 12.5 {middle}.5 H {left}\"/>")?;
    }
    write!(
        out,
        "<rect class=\"{look}\" x=\"{left}.5\" y=\"{top}.5\" width=\"{}\" height=\"{height}\" rx=\"4\"/>",
        439 - left
    )?;
    for (row, line) in said.iter().enumerate() {
        let baseline = top + 16 + row * LINE;
        write!(out, "<text x=\"{}\" y=\"{baseline}\">{}</text>", left + 9, Escaped(line))?;
    }
    writeln!(out, "</svg>")
}

/// Lines of at most [`COLUMNS`], broken at a space where there is one.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut wide) = (String::new(), 0);
    for c in text.chars() {
        let more = columns(c);
        if wide + more > COLUMNS {
            let rest = line.rfind(' ').map_or_else(String::new, |at| line.split_off(at + 1));
            lines.push(std::mem::replace(&mut line, rest));
            wide = line.chars().map(columns).sum();
        }
        line.push(c);
        wide += more;
    }
    lines.push(line);
    lines
}

/// Other scripts may be as wide as two letters.
const fn columns(c: char) -> usize {
    if c.is_ascii() { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_a_space_or_where_the_box_does() {
        let most = "x".repeat(COLUMNS);
        assert_eq!(lines(""), [""]);
        assert_eq!(lines(&most), [&*most]);
        assert_eq!(lines(&format!("{most}yz")), [&*most, "yz"]);
        assert_eq!(lines(&format!("of {}", &most[..52])), ["of ", &most[..52]]);
        assert_eq!(lines(&"\u{8a9e}".repeat(28)), ["\u{8a9e}".repeat(27), "\u{8a9e}".into()]);
    }
}
