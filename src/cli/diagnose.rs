//! `diagnose`: what holds what, since when, and what to do next.

use std::io::Write;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    Failure, Outcome,
    args::{DiagnoseArgs, Output},
    can_delete::holders,
    contents, deadline, flags, load, missing, text, verified,
};
use crate::core::diagnosis::{self, Health, NamespaceReport, State, TemplateReport};

pub(super) async fn run(args: &DiagnoseArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let inventory = load(&args.state).await?;
    let now = text::now();
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
            return Err(missing(&args.state, &contents.template_names(), namespace, name));
        }
        reports.push(report);
    }
    let stuck = reports.iter().flat_map(|it| &it.templates).any(|it| it.health == Health::Stuck);
    match args.output {
        Output::Text => write_text(&reports, &flags(&args.state), now, out)?,
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
    flags: &str,
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut all: Vec<_> =
        reports.iter().flat_map(|it| it.templates.iter().map(|t| (&*it.namespace, t))).collect();
    let count = |health| all.iter().filter(|(_, it)| it.health == health).count();
    let healthy = count(Health::Ok);
    if all.is_empty() {
        writeln!(out, "{}", nothing(reports, flags))?;
    } else {
        writeln!(
            out,
            "{} template{}: {} stuck, {} draining, {healthy} ok",
            all.len(),
            if all.len() == 1 { "" } else { "s" },
            count(Health::Stuck),
            count(Health::Draining),
        )?;
    }
    for health in [Health::Stuck, Health::Draining] {
        for (namespace, report) in all.iter().filter(|(_, it)| it.health == health) {
            write_trouble(namespace, report, flags, now, out)?;
        }
    }
    if healthy > 0 {
        // Trouble comes oldest first; what is well is looked up by its name.
        all.sort_by_key(|(namespace, report)| (*namespace, &*report.name));
        writeln!(out, "\nOK")?;
        let mut table = text::Table::default();
        for (namespace, report) in all.iter().filter(|(_, it)| it.health == Health::Ok) {
            let [deletable, more] = summary(report);
            table.row([format!("{namespace}/{}", report.name), deletable, more]);
        }
        table.write(out, 2)?;
    }
    let mut dead_references = text::Table::default();
    for report in reports {
        for dead in &report.dead_references {
            let to = format!("names {}/{}", dead.namespace, dead.template);
            dead_references.row([format!("{} in {}", dead.from, report.namespace), to]);
        }
    }
    if reports.iter().any(|it| !it.dead_references.is_empty()) {
        writeln!(out, "\nIGNORED by CAPM3, because the template is in another namespace")?;
        dead_references.write(out, 2)?;
    }
    Ok(())
}

/// What to say when there is no template at all: perhaps the namespace is the wrong one.
fn nothing(reports: &[NamespaceReport], flags: &str) -> String {
    match reports {
        [one] => format!(
            "no Metal3DataTemplate in namespace {}; 'metal3-guard diagnose -A{flags}' shows all",
            one.namespace
        ),
        _ => "no Metal3DataTemplate in any namespace".into(),
    }
}

/// Whether a deletion would be allowed, and what else there is to see.
fn summary(report: &TemplateReport) -> [String; 2] {
    let deletable = match report.deletable {
        Some(true) => "may be deleted",
        Some(false) => "in use",
        None => "does not exist",
    };
    let named_by = match report.holders.len() {
        0 => "nothing names it".into(),
        1 => "named by 1 object".into(),
        many => format!("named by {many} objects"),
    };
    let more = match &*report.stale_indexes {
        [] => named_by,
        stale => format!("{named_by}; stale indexes: {}", stale.join(", ")),
    };
    [deletable.into(), more]
}

fn write_trouble(
    namespace: &str,
    report: &TemplateReport,
    flags: &str,
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
        writeln!(out, "  finalizers, and who removes them")?;
        let mut table = text::Table::default();
        for finalizer in &report.finalizers {
            table.row([finalizer.name.as_str(), finalizer.owner]);
        }
        table.write(out, 4)?;
    }
    if !report.stale_indexes.is_empty() {
        writeln!(out, "  stale indexes: {}", text::one_line(&report.stale_indexes.join(", ")))?;
    }
    for wait in &report.waits_for {
        writeln!(out, "  waits for {}", text::one_line(wait))?;
    }
    if let Some(at) = report.next_look.filter(|_| !report.waits_for.is_empty()) {
        let seconds = at.duration_since(now).as_secs().max(0);
        writeln!(out, "  the guard looks again within {seconds} s")?;
    }
    write_steps(report, now, out)?;
    if !report.steps.is_empty() {
        writeln!(out, "  plan: metal3-guard unstick {} -n {namespace}{flags}", report.name)?;
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
