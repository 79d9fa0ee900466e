//! `diagnose`: what holds what, since when, and what to do next.

use std::{io::Write, pin::pin};

use jiff::Timestamp;
use serde::Serialize;
use tokio::{
    signal::ctrl_c,
    time::{Duration, sleep},
};

use super::{
    Failure, Outcome,
    args::{DiagnoseArgs, DiagnoseOutput},
    can_delete::holders,
    contents, deadline, flags, load, missing, text, verified,
};
use crate::{
    core::{
        by_hand::ByHand,
        diagnosis::{self, Health, NamespaceReport, State, TemplateReport, UNUSED},
    },
    inventory::Inventory,
};

mod dot;
mod html;

/// Between two looks of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);

pub(super) async fn run(args: &DiagnoseArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    if !args.watch {
        let inventory = load(&args.state).await?;
        let now = text::now();
        let reports = look(&*inventory, args, now).await?;
        write(args, &reports, now, out)?;
        return Ok(outcome(&reports));
    }
    if args.output != DiagnoseOutput::Text {
        return Err(Failure::Usage("--watch is for the terminal: leave -o out".into()));
    }
    watch(args, out).await
}

/// Prints the report whenever it has changed, until Ctrl-C. Files are read anew each time.
async fn watch(args: &DiagnoseArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let mut stop = pin!(ctrl_c());
    let mut shown: Option<Vec<NamespaceReport>> = None;
    let mut outcome = Outcome::Good;
    loop {
        let looking = async {
            let inventory = load(&args.state).await?;
            let now = text::now();
            Ok::<_, Failure>((look(&*inventory, args, now).await?, now))
        };
        let looked = tokio::select! {
            looked = looking => looked,
            _ = &mut stop => return Ok(outcome),
        };
        match looked {
            Ok((reports, now)) => {
                if shown.as_ref().is_none_or(|before| differ(before, &reports)) {
                    writeln!(out, "{}--- {now}", if shown.is_some() { "\n" } else { "" })?;
                    write(args, &reports, now, out)?;
                    out.flush()?;
                }
                outcome = self::outcome(&reports);
                shown = Some(reports);
            }
            // The first look must work; a later one may meet an API server that restarts.
            Err(Failure::Unverified(why)) if shown.is_some() => {
                writeln!(out, "--- {}: cannot look: {why}", text::now())?;
                out.flush()?;
            }
            // The one that was watched is gone.
            Err(Failure::Usage(why)) if shown.is_some() => {
                writeln!(out, "\n--- {}: {why}", text::now())?;
                return Ok(Outcome::Good);
            }
            Err(failure) => return Err(failure),
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = &mut stop => return Ok(outcome),
        }
    }
}

/// Whether more has changed than the times of steps, which go on by themselves.
fn differ(before: &[NamespaceReport], after: &[NamespaceReport]) -> bool {
    let timeless = |reports: &[NamespaceReport]| {
        let mut reports = reports.to_vec();
        for template in reports.iter_mut().flat_map(|it| &mut it.templates) {
            template.next_look = None;
            for step in &mut template.steps {
                step.due = Timestamp::UNIX_EPOCH;
            }
        }
        reports
    };
    timeless(before) != timeless(after)
}

async fn look(
    inventory: &dyn Inventory,
    args: &DiagnoseArgs,
    now: Timestamp,
) -> Result<Vec<NamespaceReport>, Failure> {
    let namespaces = if args.all_namespaces {
        verified(inventory.namespaces(deadline())).await?
    } else {
        vec![args.namespace.as_str().into()]
    };
    let mut reports = Vec::new();
    for namespace in &namespaces {
        let contents = contents(inventory, namespace).await?;
        let report = diagnosis::namespace(namespace, &contents, args.name.as_deref(), now);
        if let Some(name) = args.name.as_deref().filter(|_| report.templates.is_empty()) {
            return Err(missing(&args.state, &contents.template_names(), namespace, name));
        }
        reports.push(report);
    }
    Ok(reports)
}

fn outcome(reports: &[NamespaceReport]) -> Outcome {
    let mut templates = reports.iter().flat_map(|it| &it.templates);
    if templates.any(|it| it.health == Health::Stuck) { Outcome::Found } else { Outcome::Good }
}

fn write(
    args: &DiagnoseArgs,
    reports: &[NamespaceReport],
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match args.output {
        DiagnoseOutput::Text => write_text(reports, &flags(&args.state), now, out)?,
        DiagnoseOutput::Dot => dot::write(reports, now, out)?,
        DiagnoseOutput::Html => html::write(reports, &flags(&args.state), now, out)?,
        DiagnoseOutput::Json => {
            let healthy = outcome(reports) == Outcome::Good;
            let document = Document { healthy, namespaces: reports };
            serde_json::to_writer_pretty(&mut *out, &document).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(())
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
    let stale = match &*report.stale_indexes {
        [] => None,
        stale => Some(format!("stale indexes: {}", stale.join(", "))),
    };
    // That nothing uses it is said already.
    let notes = report.notes.iter().filter(|note| *note != UNUSED).cloned();
    let more: Vec<_> = [named_by].into_iter().chain(stale).chain(notes).collect();
    [deletable.into(), text::one_line(&more.join("; "))]
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
    write_by_hand(&report.by_hand, out)?;
    if let Some(at) = report.next_look.filter(|_| !report.waits_for.is_empty()) {
        let seconds = at.duration_since(now).as_secs().max(0);
        writeln!(out, "  the guard looks again within {seconds} s")?;
    }
    write_steps(report, now, out)?;
    if !report.steps.is_empty() {
        writeln!(out, "  plan: {}", plan_command(namespace, &report.name, flags))?;
    }
    Ok(())
}

/// The command that shows the plan for a template, to copy.
fn plan_command(namespace: &str, template: &str, flags: &str) -> String {
    let [namespace, template] = [namespace, template].map(text::shell_word);
    format!("metal3-guard unstick {template} -n {namespace}{flags}")
}

/// The commands for what a plan waits for, to copy.
pub(super) fn write_by_hand(by_hand: &[ByHand], out: &mut impl Write) -> Result<(), Failure> {
    for ByHand { when, commands } in by_hand {
        writeln!(out, "  by hand, {when}")?;
        for command in commands {
            writeln!(out, "    {command}")?;
        }
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
