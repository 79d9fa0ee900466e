//! `review`: `AdmissionReviews` from files through the hooks that would get them.

use std::{fs, io::Read as _, io::Write, path::Path};

use json_patch::Patch;
use serde::Serialize;
use serde_json::{Value, value::RawValue};

use super::{
    Failure, Outcome,
    args::{AdditionsArg, Output, ReviewArgs},
    deadline, load, text,
};
use crate::{
    admission::{Hook, wire::Envelope},
    core::{
        finalizers::Additions,
        verdict::{Code, Ruling, Verdict},
    },
    inventory::Inventory,
};

pub(super) async fn run(args: &ReviewArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let only = args.path.as_deref().map(hook_of).transpose()?;
    let inventory = load(&args.state).await?;
    let mut results = Vec::new();
    for file in &args.files {
        let documents = documents(file)?;
        if documents.is_empty() {
            // Nothing asked must not look like everything allowed.
            return Err(Failure::Usage(format!("{}: no AdmissionReview in it", shown(file))));
        }
        for document in documents {
            let judged = judge(document, only, args.finalizer_additions.into(), &*inventory).await;
            let judged = judged.map_err(|why| Failure::Usage(format!("{}: {why}", shown(file))))?;
            results.push(ReviewResult { file: file.display().to_string(), ..judged });
        }
    }
    let denied = results.iter().any(|result| !result.allowed);
    match args.output {
        Output::Text => results.iter().try_for_each(|result| write_text(result, out))?,
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &results).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    // Such a denial says nothing about the object: a script must be able to tell.
    let unverified = results.iter().filter(|result| result.is_unverified()).count();
    if unverified > 0 {
        let all = results.len();
        return Err(Failure::Unverified(format!(
            "{unverified} of {all} reviews could not be verified; see above"
        )));
    }
    Ok(if denied { Outcome::Found } else { Outcome::Good })
}

impl From<AdditionsArg> for Additions {
    fn from(arg: AdditionsArg) -> Self {
        match arg {
            AdditionsArg::Deny => Self::Deny,
            AdditionsArg::Strip => Self::Strip,
        }
    }
}

/// The stable JSON shape: one for each review.
#[derive(Serialize)]
struct ReviewResult {
    file: String,
    uid: String,
    operation: &'static str,
    object: String,
    allowed: bool,
    hooks: Vec<HookResult>,
}

impl ReviewResult {
    fn is_unverified(&self) -> bool {
        let unverified = Code::ServiceUnavailable.number();
        self.hooks.iter().any(|hook| hook.code == Some(unverified))
    }
}

#[derive(Serialize)]
struct HookResult {
    path: &'static str,
    verdict: &'static str,
    rule: &'static str,
    code: Option<u16>,
    reason: Option<&'static str>,
    message: Option<String>,
    causes: Vec<String>,
    warnings: Vec<String>,
    patch: Option<Patch>,
}

impl HookResult {
    fn of(hook: Hook, ruling: &Ruling<Patch>) -> Self {
        let denial = ruling.denial();
        Self {
            path: hook.path(),
            verdict: ruling.word(),
            rule: ruling.rule,
            code: denial.map(|it| it.code.number()),
            reason: denial.map(|it| it.code.reason()),
            message: denial.map(|it| it.message.clone()),
            causes: denial
                .iter()
                .flat_map(|it| &it.causes)
                .map(|cause| format!("{} ({})", cause.message, cause.field))
                .collect(),
            warnings: ruling.warnings.sent(),
            patch: match &ruling.verdict {
                Verdict::Patch(patch) => Some(patch.clone()),
                Verdict::Allow | Verdict::Deny(_) => None,
            },
        }
    }
}

fn hook_of(path: &str) -> Result<Hook, Failure> {
    Hook::of_path(path).ok_or_else(|| {
        let paths: Vec<_> = Hook::ALL.into_iter().map(Hook::path).collect();
        Failure::Usage(format!("there is no hook on {path}; there are {}", paths.join(", ")))
    })
}

/// The name of a file in a message.
fn shown(file: &Path) -> String {
    if file == Path::new("-") { "standard input".into() } else { file.display().to_string() }
}

/// The reviews in a file: JSON documents after each other, or YAML.
fn documents(file: &Path) -> Result<Vec<String>, Failure> {
    let failed = |why: String| Failure::Usage(format!("cannot read {}: {why}", shown(file)));
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map_err(|e| failed(e.to_string()))?;
    } else {
        text = fs::read_to_string(file).map_err(|e| failed(e.to_string()))?;
    }
    if text.trim_start().starts_with('{') {
        let values = serde_json::Deserializer::from_str(&text).into_iter::<Box<RawValue>>();
        let documents: Result<Vec<_>, _> =
            values.map(|it| it.map(|raw| raw.get().into())).collect();
        return documents.map_err(|error| failed(error.to_string()));
    }
    let values: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| failed(error.without_snippet().to_string()))?;
    Ok(values.iter().map(Value::to_string).collect())
}

/// Puts a review to its hooks, mutating ones first and each patch applied before the next hook.
async fn judge(
    mut document: String,
    only: Option<Hook>,
    additions: Additions,
    inventory: &dyn Inventory,
) -> Result<ReviewResult, String> {
    let envelope = Envelope::read(document.as_bytes()).map_err(|error| error.to_string())?;
    let review = envelope.review();
    let wanted = |hook: &Hook| only.map_or_else(|| hook.gets(&review), |only| only == *hook);
    let hooks: Vec<_> = Hook::ALL.into_iter().filter(wanted).collect();
    let mut result = ReviewResult {
        file: String::new(),
        uid: envelope.uid().into(),
        operation: review.operation.name(),
        object: review.subject().to_string(),
        allowed: true,
        hooks: Vec::new(),
    };
    for hook in hooks {
        let ruling = {
            let envelope = Envelope::read(document.as_bytes()).map_err(|it| it.to_string())?;
            let answered = hook.judge(&envelope.review(), inventory, additions, deadline()).await;
            answered.into_ruling()
        };
        result.hooks.push(HookResult::of(hook, &ruling));
        match &ruling.verdict {
            Verdict::Allow => {}
            Verdict::Patch(patch) => document = patched(&document, patch)?,
            Verdict::Deny(_) => {
                // Here an API server stops.
                result.allowed = false;
                break;
            }
        }
    }
    Ok(result)
}

fn patched(document: &str, patch: &Patch) -> Result<String, String> {
    let mut value: Value = serde_json::from_str(document).map_err(|error| error.to_string())?;
    let object = value.pointer_mut("/request/object").ok_or("the review has no object to patch")?;
    json_patch::patch(object, patch).map_err(|error| error.to_string())?;
    Ok(value.to_string())
}

fn write_text(result: &ReviewResult, out: &mut impl Write) -> Result<(), Failure> {
    let word = if result.allowed { "ALLOWED" } else { "DENIED" };
    let what = text::one_line(&format!("{} {}", result.operation, result.object));
    writeln!(out, "{word}  {what}  ({})", result.file)?;
    if result.hooks.is_empty() {
        writeln!(out, "  no hook gets this review")?;
    }
    for hook in &result.hooks {
        writeln!(out, "  {}: {} ({})", hook.path, hook.verdict, hook.rule)?;
        if let (Some(code), Some(reason), Some(message)) = (hook.code, hook.reason, &hook.message) {
            text::paragraph(out, &format!("{code} {reason}: {message}"), 4)?;
        }
        for cause in &hook.causes {
            writeln!(out, "    - {}", text::one_line(cause))?;
        }
        for warning in &hook.warnings {
            writeln!(out, "    warning: {warning}")?;
        }
        if let Some(patch) = &hook.patch {
            writeln!(out, "    patch: {patch}")?;
        }
    }
    Ok(())
}
