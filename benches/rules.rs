//! Each rule, and a whole review from bytes to bytes, over sizes of bodies and of the state.
//!
//! At the end: what a deletion check costs among 100 000 machines that name other templates, as a
//! ratio to that among 100.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a bench prints its result and has nobody to hand an error to"
)]

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput};
use futures_util::FutureExt as _;
use metal3_guard::{
    admission::{Admission, Patience, ReviewMetrics, wire::Envelope},
    core::{finalizers::Additions, release, review::Review, verdict::Verdict},
    inventory::{Inventory, Need, snapshot::Snapshot},
};
use tokio::time::Instant;

mod sample;

use sample::{Case, FREE, NAMESPACE, SIZES};

const MACHINES: [usize; 3] = [100, 10_000, 100_000];
/// The check may cost this much more among the most machines than among the fewest.
const MOST_GROWTH: f64 = 1.5;

fn main() {
    let states: Vec<_> = MACHINES
        .iter()
        .map(|machines| (*machines, Arc::new(sample::snapshot(*machines))))
        .collect();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(400))
        .configure_from_args();
    // The rules look at the clock for deadlines only, and the state is in memory: nothing ever
    // waits, so a runtime that never runs is enough.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    rules(&mut criterion, &states);
    reviews(&mut criterion, &states);
    criterion.final_summary();
    growth(&states);
}

/// The look-up and the judgement. The objects are parsed together with the review around them.
fn rules(criterion: &mut Criterion, states: &[(usize, Arc<Snapshot>)]) {
    for case in Case::ALL {
        let mut group = criterion.benchmark_group(format!("rule/{}", case.name()));
        for (label, size) in SIZES {
            let body = case.review(size);
            let envelope = Envelope::read(body.as_bytes()).expect("a review");
            let review = envelope.review();
            for (machines, state) in states {
                judge(case, &review, &**state);
                group.bench_function(BenchmarkId::new(label, machines), |bencher| {
                    bencher.iter(|| judge(case, black_box(&review), &**state));
                });
            }
        }
        group.finish();
    }
}

/// Bytes to bytes, metrics counted, log off.
fn reviews(criterion: &mut Criterion, states: &[(usize, Arc<Snapshot>)]) {
    for case in Case::ALL {
        let mut group = criterion.benchmark_group(format!("review/{}", case.name()));
        for (label, size) in SIZES {
            let body = case.review(size);
            group.throughput(Throughput::Bytes(body.len() as u64));
            for (machines, state) in states {
                let admission = Admission {
                    inventory: Arc::clone(state) as Arc<_>,
                    additions: Additions::Deny,
                    patience: Patience::default(),
                    metrics: ReviewMetrics::new(),
                };
                group.bench_function(BenchmarkId::new(label, machines), |bencher| {
                    bencher.iter(|| {
                        let answer = admission.answer(
                            case.hook(),
                            black_box(body.as_bytes()),
                            Some("timeout=5s"),
                        );
                        let answer = answer.now_or_never().expect("an answer without waiting");
                        black_box(answer.expect("a review"))
                    });
                });
            }
        }
        group.finish();
    }
}

/// One rule as its hook asks it. Every case must be allowed after the facts were looked at.
fn judge(case: Case, review: &Review<'_>, state: &dyn Inventory) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let answered = case.hook().judge(review, state, Additions::Deny, deadline);
    let ruling = answered.now_or_never().expect("a ruling without waiting").into_ruling();
    assert!(matches!(ruling.verdict, Verdict::Allow), "{}: {}", case.name(), ruling.rule);
    black_box(ruling);
}

/// The deletion check in the smallest and the largest state, turn by turn.
fn growth(states: &[(usize, Arc<Snapshot>)]) {
    let [(few, small), .., (many, large)] = states else { return };
    let body = Case::Deletion.review(920);
    let envelope = Envelope::read(body.as_bytes()).expect("a review");
    let review = envelope.review();
    let deadline = Instant::now() + Duration::from_hours(1);
    let question =
        release::Question { namespace: NAMESPACE.into(), name: FREE.into(), uid: "".into() };
    let ask = |state: &Snapshot| {
        black_box(state.usage(Need::Release(&question), deadline).now_or_never());
    };
    for (what, limit, ratio) in [
        (
            "deletion check",
            Some(MOST_GROWTH),
            paired(
                || judge(Case::Deletion, &review, &**small),
                || {
                    judge(Case::Deletion, &review, &**large);
                },
            ),
        ),
        ("its look-up alone", None, paired(|| ask(small), || ask(large))),
    ] {
        let (one, other) = ratio;
        let ratio = other / one;
        let verdict = match limit {
            Some(limit) if ratio > limit => format!(", OVER the limit of {limit}"),
            Some(limit) => format!(", within the limit of {limit}"),
            None => String::new(),
        };
        println!(
            "{what}: {one:.0} ns among {few} machines, {other:.0} ns among {many}: ratio \
             {ratio:.2}{verdict}"
        );
    }
}

/// The medians of both in nanoseconds a call.
fn paired(mut one: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    const ROUNDS: usize = 201;
    const CALLS: u32 = 500;
    let time = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let (mut ones, mut others): (Vec<_>, Vec<_>) =
        (0..ROUNDS).map(|_| (time(&mut one), time(&mut other))).unzip();
    (median(&mut ones), median(&mut others))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
