//! `unstick`: the plan that frees a template, printed, or carried out with `--apply`.

use std::io::Write;

use jiff::Timestamp;

use super::{
    Failure, Outcome,
    args::{Output, UnstickArgs},
    contents,
    diagnose::{write_by_hand, write_steps},
    load, missing, text,
};
use crate::core::{
    diagnosis::{self, NextStep, State, TemplateReport},
    objects::WOKEN_ANNOTATION,
    plan::Action,
};

mod apply;

pub(super) async fn run(args: &UnstickArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    if let Some(reason) = args.reason.as_deref().filter(|_| args.apply) {
        return apply::run(args, reason, out).await;
    }
    let UnstickArgs { name, namespace, .. } = args;
    let inventory = load(&args.state).await?;
    let contents = contents(&*inventory, namespace).await?;
    let names = contents.template_names();
    if !names.iter().any(|known| **known == **name) {
        return Err(missing(&args.state, &names, namespace, name));
    }
    let now = text::now();
    let report = diagnosis::template(&contents, name, now);
    let idle = report.steps.is_empty() && report.waits_for.is_empty();
    match args.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        Output::Text => {
            let state = match report.state {
                State::Live => "is live".into(),
                State::Terminating => {
                    format!("is terminating since {}", text::since(report.since, now))
                }
                State::Missing => "does not exist any more".into(),
            };
            writeln!(out, "Metal3DataTemplate {namespace}/{name} {state}")?;
            if idle {
                writeln!(out, "  there is nothing to do")?;
            }
            for wait in &report.waits_for {
                writeln!(out, "  waits for {}", text::one_line(wait))?;
            }
            write_by_hand(&report.by_hand, out)?;
            write_steps(&report, now, out)?;
            write_wakes(&report, namespace, now, out)?;
            if !report.steps.is_empty() {
                writeln!(out, "dry run: nothing was changed; --apply --reason TEXT does it")?;
            }
        }
    }
    Ok(if idle { Outcome::Good } else { Outcome::Found })
}

/// The commands for the gentlest kind of step, the only one that is harmless on any object: a new
/// annotation makes CAPM3 look again.
fn write_wakes(
    report: &TemplateReport,
    namespace: &str,
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    // One before its time would only put off what follows it.
    let due = |step: &&NextStep| step.action == Action::Wake.word() && step.due <= now;
    let mut woken = report.steps.iter().filter(due).peekable();
    if woken.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "  wake them by hand, then look again")?;
    for step in woken {
        writeln!(
            out,
            "    kubectl annotate --overwrite -n {} {} {WOKEN_ANNOTATION}=$(date -u +%FT%TZ)",
            text::shell_word(namespace),
            text::shell_word(&step.object.to_lowercase()),
        )?;
    }
    Ok(())
}
