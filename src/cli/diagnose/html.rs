//! `diagnose -o html`: one page that needs nothing else, readable on paper too.

use std::io;

use jiff::Timestamp;

use super::{super::text, NamespaceReport, State, TemplateReport, plan_command};
use crate::core::{
    by_hand::ByHand,
    diagnosis::{Health, Holder},
};

mod graph;

/// No script, no network: a page made of names from a cluster runs nothing.
const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>metal3-guard diagnose</title>
<style>
body { font: 14px/1.45 sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #1b1b1b; background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em } h3 { font-size: 1.1em; margin: .8em 0 .6em }
h1, h2, h3 { line-height: 1.3; break-after: avoid }
table { border-collapse: collapse; width: 100%; margin: .5em 0 }
th, td { text-align: left; vertical-align: top; padding: .3em 1.2em .3em 0; border-bottom: 1px solid #ccc }
th { font-weight: 600 } small { font-size: 12px; color: #555 }
td:first-child { white-space: nowrap } td:nth-child(2) { width: 40% }
section { border: 1px solid #999; border-left-width: 8px; padding: 0 1em .8em; margin: 1em 0; break-inside: avoid }
section.stuck { border-left-color: #b00020 } section.draining { border-left-color: #b27b00 } section.ok { border-left-color: #2c7a2c }
.word { font-weight: 700; text-transform: uppercase }
.sides { display: flex; flex-flow: row-reverse wrap; justify-content: flex-end; gap: 0 2em }
.said { flex: 1 1 24em; min-width: 0 } .said > :first-child { margin-top: 0 }
.graph { flex: 0 1 440px; min-width: 0 }
ol, ul { padding-left: 1.6em } p, li, tr, svg { break-inside: avoid }
svg { display: block; width: 100%; max-width: 440px; height: auto } svg text { font: 12px monospace }
svg rect { fill: #fff; stroke: #555 } svg rect.going { stroke-dasharray: 5 3 } svg path { fill: none; stroke: #777 }
svg rect.stuck { fill: #f9dcdc } svg rect.draining { fill: #fdf2d0 }
code { font: 13px monospace }
@media (max-width: 48em) {
table, tbody, tr, td { display: block } th { display: none }
tr { border-bottom: 1px solid #ccc; padding: .4em 0 } td { border: 0; padding: 0 }
td:first-child { font-weight: 600 } td:nth-child(2) { width: auto }
}
@media print { body { margin: 0; max-width: none; padding: 0 } section { border-color: #000 } .sides { display: block } .graph { margin-top: 1em } }
</style>
</head>
<body>
"#;

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
    all.sort_by_key(|(_, it)| {
        let since = began(it);
        (it.health, since.is_none(), since)
    });
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

/// When the oldest deletion was that has to do with a template in trouble; when one that is well
/// was made.
fn began(template: &TemplateReport) -> Option<Timestamp> {
    if template.health == Health::Ok {
        return template.since;
    }
    let own = template.since.filter(|_| template.state == State::Terminating);
    template.holders.iter().filter_map(|it| it.terminating).chain(own).min()
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
    writeln!(out, "<table>\n<tr><th>since</th><th>object, finalizers</th><th>next step</th></tr>")?;
    for (since, namespace, kind, name, finalizers, template) in rows {
        let object = format!("{kind}/{name}");
        writeln!(
            out,
            "<tr><td>{}</td><td>{}/{}<br/><small>{}</small></td><td>{}</td></tr>",
            Escaped(&text::since(since, now)),
            Escaped(namespace),
            Escaped(&object),
            Escaped(&finalizers.join(", ")),
            Escaped(&next(template, &object, now))
        )?;
    }
    writeln!(out, "</table>")
}

/// What is next for an object, or for the template that it has to do with.
fn next(template: &TemplateReport, object: &str, now: Timestamp) -> String {
    if let Some(step) = template.steps.iter().find(|step| step.object == object) {
        return format!("{}, {}: {}", step.action, when(step.due, now), step.reason);
    }
    if let Some(wait) = template.waits_for.first() {
        return format!("waits for {wait}");
    }
    template.steps.first().map_or_else(
        || "none: its controller goes on by itself".into(),
        |step| format!("{} {}, {}: {}", step.action, step.object, when(step.due, now), step.reason),
    )
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
    writeln!(out, "<div class=\"sides\">\n<div class=\"said\">")?;
    for note in &template.notes {
        writeln!(out, "<p>Note: {}.</p>", Escaped(note))?;
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
        let command = plan_command(namespace, &template.name, flags);
        writeln!(out, "</ol>\n<p>The plan: <code>{}</code></p>", Escaped(&command))?;
    }
    writeln!(out, "</div>")?;
    if !template.holders.is_empty() {
        graph::write(template, now, out)?;
    }
    writeln!(out, "</div>\n</section>")
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
                c if c.is_control() || turns(c) => f.write_str(" ")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// Whether a character changes the direction of those after it, or hides in them.
const fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
    fn what_turns_text_around_is_left_out() {
        assert_eq!(Escaped("a\u{202e}b\u{2066}c").to_string(), "a b c");
    }
}
