//! `diagnose -o dot`: what holds what, for Graphviz.

use std::{fmt::Write as _, io};

use jiff::Timestamp;

use super::{super::text, NamespaceReport, State, TemplateReport};
use crate::core::diagnosis::{Health, Holder};

/// One graph with a cluster for each namespace: holders point at the template that they name.
pub(super) fn write(
    reports: &[NamespaceReport],
    now: Timestamp,
    out: &mut impl io::Write,
) -> io::Result<()> {
    writeln!(out, "digraph metal3 {{")?;
    writeln!(out, "  rankdir=LR; node [shape=box, fontname=\"sans-serif\"];")?;
    for (number, report) in reports.iter().enumerate() {
        writeln!(out, "  subgraph cluster_{number} {{")?;
        writeln!(out, "    label={};", quoted(&report.namespace))?;
        for template in &report.templates {
            write_template(&report.namespace, template, now, out)?;
        }
        for dead in &report.dead_references {
            let from = id(&report.namespace, &dead.from);
            let to = id(&dead.namespace, &format!("Metal3DataTemplate/{}", dead.template));
            writeln!(out, "    {from} -> {to} [style=dotted, label=\"ignored by CAPM3\"];")?;
        }
        writeln!(out, "  }}")?;
    }
    writeln!(out, "}}")
}

fn write_template(
    namespace: &str,
    template: &TemplateReport,
    now: Timestamp,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let to = id(namespace, &format!("Metal3DataTemplate/{}", template.name));
    let state = match template.state {
        State::Live => "live".to_owned(),
        State::Terminating => format!("terminating since {}", text::since(template.since, now)),
        State::Missing => "does not exist".to_owned(),
    };
    let mut label = format!("Metal3DataTemplate\n{}\n{state}", template.name);
    if let Some(step) = template.steps.first() {
        let _ = write!(label, "\nnext: {} {}", step.action, step.object);
    }
    let style = match template.health {
        Health::Stuck => ", style=filled, fillcolor=\"#f6c6c6\"",
        Health::Draining => ", style=filled, fillcolor=\"#fbe9b7\"",
        Health::Ok => "",
    };
    let dashed = if template.state == State::Missing { ", shape=note" } else { "" };
    writeln!(out, "    {to} [label={}{style}{dashed}];", quoted(&label))?;
    for Holder { kind, name, terminating, role, .. } in &template.holders {
        let from = id(namespace, &format!("{kind}/{name}"));
        let age = terminating.map(|at| format!("\nterminating {}", text::age(at, now)));
        let label = quoted(&format!("{kind}\n{name}{}", age.unwrap_or_default()));
        let style = if terminating.is_some() { ", style=dashed" } else { "" };
        writeln!(out, "    {from} [label={label}{style}];")?;
        writeln!(out, "    {from} -> {to} [label={}];", quoted(role))?;
    }
    Ok(())
}

fn id(namespace: &str, object: &str) -> String {
    quoted(&format!("{namespace}/{object}"))
}

/// A quoted string of the DOT language: only the quote and the backslash mean anything in it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_ends_a_string() {
        assert_eq!(quoted("a\"b\\c\nd\u{7}"), r#""a\"b\\c\nd ""#);
    }
}
