//! `unstick --apply`: the plan, carried out by a person through the controller's own hands.
//!
//! It keeps nothing between two runs: the state of the cluster is the whole state. So it can be
//! stopped anywhere and run again.

use std::{io::Write, pin::pin, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::{
    signal::ctrl_c,
    time::{Duration, Instant, sleep},
};

use super::{
    super::{
        Failure, Outcome, args::UnstickArgs, cluster, deadline, diagnose::write_by_hand, text,
    },
    Output,
};
use crate::{
    controller::{
        About, Events, Hands, Look, NotWritten, Pace, Tone, Written, confirmed, needs_second_look,
    },
    core::{
        by_hand::{ByHand, by_hand},
        plan::{Plan, Scope, Situation, Step, plan},
        teardown::Change,
        verdict::Unverified,
    },
    inventory::cluster::Cluster,
};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Looks in a row that may fail before it gives up.
const LOST_LOOKS: u32 = 10;

pub(super) async fn run(
    args: &UnstickArgs,
    reason: &str,
    out: &mut impl Write,
) -> Result<Outcome, Failure> {
    if reason.trim().is_empty() {
        return Err(Failure::Usage("--reason is empty; say why the template is unstuck".into()));
    }
    if args.state.state.is_some() || args.state.demo {
        return Err(Failure::Usage(
            "--apply changes a cluster; leave it out to see the plan for --state or --demo".into(),
        ));
    }
    super::super::one_source(&args.state)?;
    let client = cluster::client(&args.state.cluster, "").await?;
    let cluster = Arc::new(Cluster::unwatched(client));
    cluster.discover(deadline()).await?;
    let by = format!("{}: {}", who(&cluster).await, text::one_line(reason.trim()));
    let mut applying = Applying {
        hands: Hands::new(Arc::clone(&cluster), Pace::default(), &*by),
        events: Events::new(Arc::clone(&cluster)),
        cluster,
        args,
        by,
        done: Vec::new(),
        told: Vec::new(),
        by_hand: Vec::new(),
        out,
    };
    let ended = applying.run().await;
    if args.output == Output::Json {
        applying.write_json(&ended)?;
    }
    match ended? {
        End::Gone | End::Idle => Ok(Outcome::Good),
        End::Waiting | End::Refused => Ok(Outcome::Found),
        End::Stopped => Err(Failure::Unverified(
            "stopped; what is listed was done, and the same command goes on from here".into(),
        )),
    }
}

/// The name that the API server knows the caller by, for the record.
async fn who(cluster: &Cluster) -> String {
    let review = serde_json::json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
    });
    let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(review.to_string().into_bytes());
    let Ok(request) = request else { return "someone".into() };
    let answer = cluster.client().request::<serde_json::Value>(request).await;
    let name = answer.ok().and_then(|it| Some(it.pointer("/status/userInfo/username")?.clone()));
    name.as_ref().and_then(|it| it.as_str()).map_or_else(|| "someone".into(), text::one_line)
}

/// How it ended, when nothing was in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum End {
    /// The template is gone, and nothing names it.
    Gone,
    /// The template is there, and there is nothing to do.
    Idle,
    /// It waits for others, or for its time.
    Waiting,
    /// A step was refused.
    Refused,
    /// Ctrl-C.
    Stopped,
}

/// One step that was tried.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tried {
    at: Timestamp,
    action: &'static str,
    object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<String>,
    reason: String,
    result: String,
}

struct Applying<'a, W> {
    cluster: Arc<Cluster>,
    hands: Hands,
    events: Events,
    args: &'a UnstickArgs,
    /// Who, and why.
    by: String,
    done: Vec<Tried>,
    /// The waits that were last printed, and what a person can do about them.
    told: Vec<String>,
    by_hand: Vec<ByHand>,
    out: &'a mut W,
}

impl<W: Write> Applying<'_, W> {
    async fn run(&mut self) -> Result<End, Failure> {
        let mut stop = pin!(ctrl_c());
        // What a step sets in motion: as long as an owner has to react, twice.
        let settle = self.args.timing.timing().wake * 2;
        let mut last_step = Instant::now();
        let mut failed_looks = 0;
        let mut first = true;
        loop {
            let looked = tokio::select! {
                looked = self.look() => looked,
                _ = &mut stop => return Ok(End::Stopped),
            };
            let (look, planned, steps) = match looked {
                Ok(looked) => looked,
                // What is done is done; a connection that broke may come back.
                Err(Unverified { why }) if !first && failed_looks < LOST_LOOKS => {
                    failed_looks += 1;
                    self.say(&format!("cannot look: {why}; trying again"))?;
                    sleep(PAUSE).await;
                    continue;
                }
                Err(unverified) => return Err(unverified.into()),
            };
            failed_looks = 0;
            if std::mem::take(&mut first) {
                self.begin(&look)?;
            }
            let Some(planned) = planned else { return self.gone(&look) };
            for step in steps {
                if !look.is_good() {
                    break;
                }
                if !self.tried(&step) {
                    last_step = Instant::now();
                }
                // Never cut short: a write whose answer is lost would be missing in the record.
                if !self.take(&step).await? {
                    return Ok(End::Refused);
                }
            }
            if planned.is_empty() {
                self.say("there is nothing to do")?;
                return Ok(End::Idle);
            }
            self.tell(&planned, &look)?;
            // The same wake-up again is no reason to stay.
            let new = planned.steps.iter().filter(|step| !self.tried(step));
            let due = new.map(|step| step.due).min();
            let soon = due.is_some_and(|due| due.duration_since(Timestamp::now()) < settle);
            let quiet =
                SignedDuration::try_from(last_step.elapsed()).unwrap_or(SignedDuration::MAX);
            if !self.args.wait && !soon && quiet > settle {
                self.give_up(due)?;
                return Ok(End::Waiting);
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                _ = &mut stop => return Ok(End::Stopped),
            }
        }
    }

    /// A look, its plan, and the steps that may be taken now; no plan when nothing is there.
    async fn look(&self) -> Result<(Look, Option<Plan>, Vec<Step>), Unverified> {
        let mut look = Look::at(&self.cluster, &self.args.namespace).await?;
        let Some(mut planned) = self.plan(&look) else { return Ok((look, None, Vec::new())) };
        let mut steps: Vec<_> = planned.due(look.clock).cloned().collect();
        if steps.iter().any(needs_second_look) {
            look = Look::at(&self.cluster, &self.args.namespace).await?;
            let Some(again) = self.plan(&look) else { return Ok((look, None, Vec::new())) };
            steps = confirmed(&steps, &again, look.clock);
            planned = again;
        }
        Ok((look, Some(planned), steps))
    }

    fn plan(&self, look: &Look) -> Option<Plan> {
        let name = &*self.args.name;
        look.contents.template_names().iter().any(|known| **known == *name).then(|| {
            plan(&Situation {
                contents: &look.contents,
                template: name,
                now: look.clock,
                unchanged_since: None,
                timing: self.args.timing.timing(),
                scope: Scope::Person,
            })
        })
    }

    /// Whether a step of this kind was tried on this object already.
    fn tried(&self, step: &Step) -> bool {
        let target = step.write.target();
        let object = format!("{}/{}", target.kind, target.name);
        self.done.iter().any(|it| it.action == step.action.word() && it.object == object)
    }

    /// Takes one step; false when it was refused.
    async fn take(&mut self, step: &Step) -> Result<bool, Failure> {
        let at = text::now();
        let target = step.write.target();
        let object = format!("{}/{}", target.kind, target.name);
        let result = self.hands.carry_out(step).await;
        let (word, go_on) = match &result {
            Ok(Written::Done) => ("done".to_owned(), true),
            Ok(Written::Conflict) => ("changed meanwhile, looking again".to_owned(), true),
            Ok(Written::Gone) => ("gone already".to_owned(), true),
            Err(NotWritten { refused: false, why }) => (format!("no answer: {why}"), true),
            Err(NotWritten { refused: true, why }) => (format!("refused: {why}"), false),
        };
        let tried = Tried {
            at,
            action: step.action.word(),
            object,
            removed: match step.write.change() {
                Change::Strip { finalizer, .. } => Some(String::from(&**finalizer)),
                Change::Wake | Change::PruneIndexes(_) | Change::Delete => None,
            },
            reason: step.reason.clone(),
            result: word,
        };
        let Tried { action, object, reason, result: word, .. } = &tried;
        let time = at.strftime("%H:%M:%SZ");
        let removed = tried.removed.as_ref().map(|it| format!(" (takes off {it})"));
        let removed = removed.unwrap_or_default();
        self.say(&format!("{time} {action} {object}{removed}: {word}; {reason}"))?;
        if matches!(result, Ok(Written::Done)) {
            let note = format!("{action} {object}{removed}: {reason}. By {}", self.by);
            let about = About::target(target);
            self.events.say(&about, Tone::Normal, "Unstuck", &note, "").await;
        }
        self.done.push(tried);
        Ok(go_on)
    }

    fn begin(&mut self, look: &Look) -> Result<(), Failure> {
        let UnstickArgs { namespace, name, .. } = self.args;
        let now = text::now();
        let state = match look.contents.templates.get(&**name).map(|it| &it.meta) {
            None => "does not exist any more".into(),
            Some(meta) => match meta.deletion {
                Some(deletion) => {
                    format!("is terminating since {}", text::since(deletion.at, now))
                }
                None => "is live".into(),
            },
        };
        self.line(&format!("Metal3DataTemplate {namespace}/{name} {state}"))?;
        let by = format!("changes are made by {}", self.by);
        self.say(&by)
    }

    fn gone(&mut self, look: &Look) -> Result<End, Failure> {
        if self.done.is_empty() && self.told.is_empty() {
            let names = look.contents.template_names();
            let names: Vec<_> = names.iter().take(5).map(|it| &**it).collect();
            let others = match &*names {
                [] => "the namespace has no template".into(),
                names => format!("the namespace has: {}", names.join(", ")),
            };
            self.say(&format!("nothing names it, so there is nothing to do; {others}"))?;
        } else {
            self.say("it is gone, and nothing names it any more")?;
        }
        Ok(End::Gone)
    }

    /// Prints what the plan waits for, when that has changed.
    fn tell(&mut self, planned: &Plan, look: &Look) -> Result<(), Failure> {
        let waits: Vec<_> = planned.waits.iter().map(ToString::to_string).collect();
        if waits != self.told {
            for wait in &waits {
                self.say(&format!("waits for {}", text::one_line(wait)))?;
            }
            self.by_hand = by_hand(&look.contents, &planned.waits);
            if self.args.output == Output::Text {
                write_by_hand(&self.by_hand, self.out)?;
                self.out.flush()?;
            }
            self.told = waits;
        }
        Ok(())
    }

    fn give_up(&mut self, due: Option<Timestamp>) -> Result<(), Failure> {
        match due.map(|due| due.duration_since(Timestamp::now()).as_secs()) {
            Some(seconds) => self.say(&format!(
                "the next step is due in {seconds} s; run the same command then, or with --wait"
            )),
            None if self.told.is_empty() => self.say(
                "CAPM3 was woken and has not reacted; see whether it runs, then run the same \
                 command again",
            ),
            None => self.say(
                "nothing more can be done until what it waits for has happened; run the same \
                 command again then",
            ),
        }
    }

    /// An indented line of the text form.
    fn say(&mut self, line: &str) -> Result<(), Failure> {
        self.line(&format!("  {line}"))
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        if self.args.output == Output::Text {
            writeln!(self.out, "{line}")?;
            // Someone watches.
            self.out.flush()?;
        }
        Ok(())
    }

    fn write_json(&mut self, ended: &Result<End, Failure>) -> Result<(), Failure> {
        let report = serde_json::json!({
            "namespace": self.args.namespace, "template": self.args.name, "by": self.by,
            "steps": self.done, "waitsFor": self.told, "byHand": self.by_hand,
            "ended": ended.as_ref().ok(),
        });
        serde_json::to_writer_pretty(&mut *self.out, &report).map_err(std::io::Error::from)?;
        writeln!(self.out)?;
        Ok(())
    }
}
