//! `diagnose -o html`: one page that needs nothing else, readable on paper too.

use std::io;

use jiff::Timestamp;

use super::{super::text, NamespaceReport, State, TemplateReport};
use crate::core::{
    by_hand::ByHand,
    diagnosis::{Health, Holder},
};

/// No script, no network: a page made of names from a cluster runs nothing.
const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>metal3-guard diagnose</title>
<style>
body { font: 14px/1.45 sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #1b1b1b; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em }
table { border-collapse: collapse; width: 100%; margin: .5em 0 }
th, td { text-align: left; vertical-align: top; padding: .25em .8em .25em 0; border-bottom: 1px solid #ccc; overflow-wrap: anywhere }
th { font-weight: 600 } td:first-child { white-space: nowrap }
h3, p, li { overflow-wrap: anywhere }
section { border: 1px solid #999; border-left-width: 8px; padding: .2em 1em 1em; margin: 1em 0; break-inside: avoid }
section.stuck { border-left-color: #b00020 } section.draining { border-left-color: #b27b00 } section.ok { border-left-color: #2c7a2c }
.word { font-weight: 700; text-transform: uppercase }
svg { width: 100%; height: auto } svg text { font: 12px monospace }
svg rect { fill: #fff; stroke: #555 } svg rect.going { stroke-dasharray: 5 3 } svg path { fill: none; stroke: #777 }
svg rect.stuck { fill: #f9dcdc } svg rect.draining { fill: #fdf2d0 }
code { font: 13px monospace }
@media print { body { margin: 0; max-width: none } section { border-color: #000 } }
</style>
</head>
<body>
"#;

/// Holders that are drawn for one template; the table names all.
const DRAWN: usize = 40;

/// The whole page. `flags` are those of a command for the same state.
pub(super) fn write(
    reports: &[NamespaceReport],
    flags: &str,
    now: Timestamp,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut all: Vec<_> =
        reports.iter().flat_map(|it| it.templates.iter().map(|t| (&*it.namespace, t))).collect();
    // The oldest trouble first, over all namespaces.
    all.sort_by_key(|(_, it)| (it.health, it.since.is_none(), it.since));
    let count = |health| all.iter().filter(|(_, it)| it.health == health).count();
    out.write_all(HEAD.as_bytes())?;
    writeln!(out, "<h1>Metal3DataTemplates: what holds what</h1>")?;
    writeln!(
        out,
        "<p>As of {now}: <b>{} stuck</b>, {} draining, {} ok.</p>",
        count(Health::Stuck),
        count(Health::Draining),
        count(Health::Ok)
    )?;
    terminating(&all, now, out)?;
    writeln!(out, "<h2>Templates</h2>")?;
    for (namespace, template) in &all {
        section(namespace, template, flags, now, out)?;
    }
    for report in reports.iter().filter(|it| !it.dead_references.is_empty()) {
        writeln!(out, "<h2>Ignored by CAPM3 in {}</h2>\n<ul>", Escaped(&report.namespace))?;
        for dead in &report.dead_references {
            writeln!(
                out,
                "<li>{} names {}/{}, in another namespace</li>",
                Escaped(&dead.from),
                Escaped(&dead.namespace),
                Escaped(&dead.template)
            )?;
        }
        writeln!(out, "</ul>")?;
    }
    writeln!(out, "</body>\n</html>")
}

/// All that is on its way out, the oldest first.
fn terminating(
    all: &[(&str, &TemplateReport)],
    now: Timestamp,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut rows = Vec::new();
    for (namespace, template) in all {
        if template.state == State::Terminating {
            let names: Vec<_> = template.finalizers.iter().map(|it| &*it.name).collect();
            let kind = "Metal3DataTemplate";
            rows.push((template.since, *namespace, kind, &*template.name, names, *template));
        }
        for Holder { kind, name, terminating, finalizers, .. } in &template.holders {
            if terminating.is_some() {
                let names = finalizers.iter().map(|it| &**it).collect();
                rows.push((*terminating, namespace, kind, name, names, template));
            }
        }
    }
    rows.sort_by_key(|(since, namespace, _, name, ..)| {
        (since.is_none(), *since, *namespace, *name)
    });
    writeln!(out, "<h2>Terminating, the oldest first</h2>")?;
    if rows.is_empty() {
        return writeln!(out, "<p>Nothing is.</p>");
    }
    writeln!(
        out,
        "<table>\n<tr><th>since</th><th>object</th><th>finalizers</th><th>next step</th></tr>"
    )?;
    for (since, namespace, kind, name, finalizers, template) in rows {
        let object = format!("{kind}/{name}");
        let next = match template.steps.iter().find(|step| step.object == object) {
            Some(step) => format!("{}, {}: {}", step.action, when(step.due, now), step.reason),
            None => match (template.waits_for.first(), template.steps.first()) {
                (Some(it), _) => format!("waits for {it}"),
                (None, Some(first)) => {
                    format!("{} {}, {}", first.action, first.object, when(first.due, now))
                }
                (None, None) => "none: its controller goes on by itself".into(),
            },
        };
        writeln!(
            out,
            "<tr><td>{}</td><td>{}/{}</td><td>{}</td><td>{}</td></tr>",
            Escaped(&text::since(since, now)),
            Escaped(namespace),
            Escaped(&object),
            Escaped(&finalizers.join(", ")),
            Escaped(&next)
        )?;
    }
    writeln!(out, "</table>")
}

fn section(
    namespace: &str,
    template: &TemplateReport,
    flags: &str,
    now: Timestamp,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let word = class(template.health);
    let state = match template.state {
        State::Live => "live".into(),
        State::Terminating => format!("terminating since {}", text::since(template.since, now)),
        State::Missing => "does not exist".into(),
    };
    writeln!(
        out,
        "<section class=\"{word}\">\n<h3><span class=\"word\">{word}</span> {}/{}, {}</h3>",
        Escaped(namespace),
        Escaped(&template.name),
        Escaped(&state)
    )?;
    for note in &template.notes {
        writeln!(out, "<p>Note: {}.</p>", Escaped(note))?;
    }
    if !template.holders.is_empty() {
        graph(template, now, out)?;
    }
    if !template.stale_indexes.is_empty() {
        writeln!(out, "<p>Stale indexes: {}.</p>", Escaped(&template.stale_indexes.join(", ")))?;
    }
    for wait in &template.waits_for {
        writeln!(out, "<p>Waits for {}.</p>", Escaped(wait))?;
    }
    for ByHand { when, commands } in &template.by_hand {
        writeln!(out, "<p>By hand, {}:</p>\n<ul>", Escaped(when))?;
        for command in commands {
            writeln!(out, "<li><code>{}</code></li>", Escaped(command))?;
        }
        writeln!(out, "</ul>")?;
    }
    if !template.steps.is_empty() {
        writeln!(out, "<ol>")?;
        for step in &template.steps {
            writeln!(
                out,
                "<li>{}: <b>{}</b> {}: {}</li>",
                when(step.due, now),
                Escaped(step.action),
                Escaped(&step.object),
                Escaped(&step.reason)
            )?;
        }
        let command = format!("metal3-guard unstick {} -n {namespace}{flags}", template.name);
        writeln!(out, "</ol>\n<p>The plan: <code>{}</code></p>", Escaped(&command))?;
    }
    writeln!(out, "</section>")
}

/// The holders on the left, each with a line to the template on the right.
fn graph(template: &TemplateReport, now: Timestamp, out: &mut impl io::Write) -> io::Result<()> {
    const ROW: usize = 46;
    /// Characters in the box of a holder.
    const ROOM: usize = 60;
    let drawn = template.holders.len().min(DRAWN);
    let more = template.holders.len() - drawn;
    let rows = drawn + usize::from(more > 0);
    let height = rows * ROW + 10;
    let middle = height / 2;
    writeln!(
        out,
        "<svg viewBox=\"0 0 1000 {height}\" role=\"img\"><title>What names {}</title>",
        Escaped(&template.name)
    )?;
    for (row, holder) in template.holders.iter().take(drawn).enumerate() {
        let top = row * ROW + 6;
        let going = if holder.terminating.is_some() { " class=\"going\"" } else { "" };
        let age = holder.terminating.map(|at| format!(", terminating {}", text::age(at, now)));
        let age = age.unwrap_or_default();
        let centre = top + 18;
        writeln!(
            out,
            "<path d=\"M 470 {centre} C 600 {centre}, 600 {middle}, 700 {middle}\"/>\
             <rect{going} x=\"4\" y=\"{top}\" width=\"466\" height=\"38\" rx=\"4\"/>\
             <text x=\"12\" y=\"{}\">{}</text><text x=\"12\" y=\"{}\">{}{}</text>",
            top + 16,
            Escaped(&short(&format!("{}/{}", holder.kind, holder.name), ROOM)),
            top + 32,
            Escaped(&short(&holder.role, ROOM.saturating_sub(age.len()))),
            Escaped(&age),
        )?;
    }
    if more > 0 {
        writeln!(out, "<text x=\"12\" y=\"{}\">and {more} more</text>", drawn * ROW + 24)?;
    }
    let top = middle - 20;
    writeln!(
        out,
        "<rect class=\"{}\" x=\"700\" y=\"{top}\" width=\"296\" height=\"40\" rx=\"4\"/>\
         <text x=\"708\" y=\"{}\">Metal3DataTemplate</text><text x=\"708\" y=\"{}\">{}</text>\n</svg>",
        class(template.health),
        top + 16,
        top + 33,
        Escaped(&short(&template.name, 38)),
    )
}

const fn class(health: Health) -> &'static str {
    match health {
        Health::Stuck => "stuck",
        Health::Draining => "draining",
        Health::Ok => "ok",
    }
}

fn when(due: Timestamp, now: Timestamp) -> String {
    match due.duration_since(now).as_secs() {
        ..=0 => "now".into(),
        seconds => format!("in {seconds} s"),
    }
}

/// At most `most` characters, for a box of a fixed width.
fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Text that means nothing to a browser.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() => f.write_str(" ")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_is_markup() {
        let hostile = "<script>alert('1')</script>&\"\u{1b}[2J";
        let escaped = Escaped(hostile).to_string();
        assert_eq!(escaped, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot; [2J");
    }

    #[test]
    fn long_names_end_in_their_box() {
        assert_eq!(short("abc", 3), "abc");
        assert_eq!(short("abcd", 3), "ab…");
    }
}
