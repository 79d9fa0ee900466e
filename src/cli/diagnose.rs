//! `diagnose`: what holds what, since when, and what to do next.

use std::io::Write;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    Failure, Outcome,
    args::{DiagnoseArgs, Output},
    can_delete::holders,
    contents, deadline, load, missing, text, verified,
};
use crate::core::diagnosis::{self, Health, NamespaceReport, State, TemplateReport};

pub(super) async fn run(args: &DiagnoseArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let inventory = load(&args.state).await?;
    let now = Timestamp::now();
    let namespaces = if args.all_namespaces {
        verified(inventory.namespaces(deadline())).await?
    } else {
        vec![args.namespace.as_str().into()]
    };
    let mut reports = Vec::new();
    for namespace in &namespaces {
        let contents = contents(&*inventory, namespace).await?;
        let report = diagnosis::namespace(namespace, &contents, args.name.as_deref(), now);
        if let Some(name) = args.name.as_deref().filter(|_| report.templates.is_empty()) {
            return Err(missing(&contents.template_names(), namespace, name));
        }
        reports.push(report);
    }
    let stuck = reports.iter().flat_map(|it| &it.templates).any(|it| it.health == Health::Stuck);
    match args.output {
        Output::Text => write_text(&reports, now, out)?,
        Output::Json => {
            let document = Document { healthy: !stuck, namespaces: &reports };
            serde_json::to_writer_pretty(&mut *out, &document).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(if stuck { Outcome::Found } else { Outcome::Good })
}

/// The stable JSON shape.
#[derive(Serialize)]
struct Document<'a> {
    healthy: bool,
    namespaces: &'a [NamespaceReport],
}

fn write_text(
    reports: &[NamespaceReport],
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let all: Vec<_> =
        reports.iter().flat_map(|it| it.templates.iter().map(|t| (&*it.namespace, t))).collect();
    let count = |health| all.iter().filter(|(_, it)| it.health == health).count();
    writeln!(
        out,
        "{} templates: {} stuck, {} draining, {} ok",
        all.len(),
        count(Health::Stuck),
        count(Health::Draining),
        count(Health::Ok)
    )?;
    for health in [Health::Stuck, Health::Draining] {
        for (namespace, report) in all.iter().filter(|(_, it)| it.health == health) {
            write_trouble(namespace, report, now, out)?;
        }
    }
    let mut healthy = text::Table::default();
    for (namespace, report) in all.iter().filter(|(_, it)| it.health == Health::Ok) {
        healthy.row([format!("{namespace}/{}", report.name), summary(report)]);
    }
    if count(Health::Ok) > 0 {
        writeln!(out, "\nOK")?;
        healthy.write(out, 2)?;
    }
    for report in reports {
        for dead in &report.dead_references {
            writeln!(
                out,
                "\nnote: {} in {} names Metal3DataTemplate {}/{} of another namespace; CAPM3 \
                 ignores that",
                dead.from, report.namespace, dead.namespace, dead.template
            )?;
        }
    }
    Ok(())
}

fn summary(report: &TemplateReport) -> String {
    let deletable = match report.deletable {
        Some(true) => "may be deleted",
        Some(false) => "in use, a deletion would be refused",
        None => "does not exist",
    };
    let users = report.holders.len();
    format!("{deletable}; named by {users} object{}", if users == 1 { "" } else { "s" })
}

fn write_trouble(
    namespace: &str,
    report: &TemplateReport,
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let word = if report.health == Health::Stuck { "STUCK" } else { "DRAINING" };
    let state = match report.state {
        State::Live => "live".into(),
        State::Terminating => format!("terminating since {}", text::since(report.since, now)),
        State::Missing => "does not exist".into(),
    };
    writeln!(out, "\n{word}  Metal3DataTemplate {namespace}/{}, {state}", report.name)?;
    for note in &report.notes {
        writeln!(out, "  note: {}", text::one_line(note))?;
    }
    if !report.holders.is_empty() {
        writeln!(out, "  named by")?;
        holders(&report.holders, now).write(out, 4)?;
    }
    if report.state == State::Terminating {
        writeln!(out, "  finalizers")?;
        let mut table = text::Table::default();
        for finalizer in &report.finalizers {
            table.row([finalizer.name.clone(), format!("removed by {}", finalizer.owner)]);
        }
        table.write(out, 4)?;
    }
    if !report.stale_indexes.is_empty() {
        writeln!(out, "  stale indexes: {}", text::one_line(&report.stale_indexes.join(", ")))?;
    }
    for wait in &report.waits_for {
        writeln!(out, "  waits for {}", text::one_line(wait))?;
    }
    write_steps(report, now, out)?;
    if !report.steps.is_empty() {
        writeln!(out, "  plan: metal3-guard unstick {} -n {namespace}", report.name)?;
    }
    Ok(())
}

/// The steps of a plan, numbered, with their times.
pub(super) fn write_steps(
    report: &TemplateReport,
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if report.steps.is_empty() {
        return Ok(());
    }
    writeln!(out, "  next")?;
    let mut table = text::Table::default();
    for (number, step) in (1..).zip(&report.steps) {
        let seconds = step.due.duration_since(now).as_secs();
        let when = if seconds <= 0 { "now".into() } else { format!("in {seconds} s") };
        let what = format!("{} {}", step.action, step.object);
        table.row([format!("{number}."), when, what, step.reason.clone()]);
    }
    table.write(out, 4)?;
    Ok(())
}
