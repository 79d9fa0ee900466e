//! `can-delete`: the verdict on a deletion, before the deletion.

use std::io::Write;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    Failure, Outcome, args::CanDeleteArgs, args::Output, contents, flags, load, missing, text,
};
use crate::core::{
    diagnosis::{self, Holder, State, TemplateReport},
    verdict::Ruling,
};

pub(super) async fn run(args: &CanDeleteArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let inventory = load(&args.state).await?;
    let contents = contents(&*inventory, &args.namespace).await?;
    let Some(template) = contents.templates.get(args.name.as_str()) else {
        let names: Vec<_> = contents.templates.keys().cloned().collect();
        return Err(missing(&args.state, &names, &args.namespace, &args.name));
    };
    let ruling = diagnosis::may_delete(template, contents.usage(&args.name));
    let now = text::now();
    let report = diagnosis::template(&contents, &args.name, now);
    match args.output {
        Output::Text => write_text(args, &ruling, &report, now, out)?,
        Output::Json => {
            let verdict = Verdict {
                allowed: ruling.denial().is_none(),
                rule: ruling.rule,
                code: ruling.denial().map(|denial| denial.code.number()),
                message: ruling.denial().map(|denial| denial.message.as_str()),
                warnings: ruling.warnings.sent(),
                holders: &report.holders,
            };
            serde_json::to_writer_pretty(&mut *out, &verdict).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(if ruling.denial().is_some() { Outcome::Found } else { Outcome::Good })
}

/// The stable JSON shape.
#[derive(Serialize)]
struct Verdict<'a> {
    allowed: bool,
    rule: &'a str,
    code: Option<u16>,
    message: Option<&'a str>,
    warnings: Vec<String>,
    holders: &'a [Holder],
}

fn write_text(
    args: &CanDeleteArgs,
    ruling: &Ruling,
    report: &TemplateReport,
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let CanDeleteArgs { namespace, name, .. } = args;
    match ruling.denial() {
        None if report.state == State::Terminating => {
            let since = text::since(report.since, now);
            writeln!(
                out,
                "YES  Metal3DataTemplate {namespace}/{name} is being deleted already, since {since}"
            )?;
            writeln!(
                out,
                "\n'metal3-guard diagnose {name} -n {namespace}{}' says what it waits for",
                flags(&args.state)
            )?;
        }
        None => writeln!(out, "YES  Metal3DataTemplate {namespace}/{name} may be deleted")?,
        Some(denial) => {
            writeln!(out, "NO   Metal3DataTemplate {namespace}/{name} may not be deleted")?;
            writeln!(out)?;
            text::paragraph(out, &denial.message, 0)?;
        }
    }
    if !report.holders.is_empty() {
        writeln!(out, "\nnamed by")?;
        holders(&report.holders, now).write(out, 2)?;
    }
    let warnings = ruling.warnings.sent();
    if !warnings.is_empty() {
        writeln!(out)?;
    }
    for warning in warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// What names a template, one line each.
pub(super) fn holders(holders: &[Holder], now: Timestamp) -> text::Table {
    let mut table = text::Table::default();
    for holder in holders {
        let state = match (holder.terminating, holder.created) {
            (Some(at), _) => format!("terminating since {}", text::since(Some(at), now)),
            (None, Some(at)) => format!("since {}", text::since(Some(at), now)),
            (None, None) => String::new(),
        };
        table.row([format!("{}/{}", holder.kind, holder.name), state, holder.role.clone()]);
    }
    table
}
