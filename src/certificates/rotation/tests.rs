//! The table of steps, with made-up certificates: only names and lifetimes count.

use jiff::SignedDuration;

use super::*;

pub(super) fn at(hours: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    start + SignedDuration::from_hours(hours)
}

pub(super) fn certificate(name: &str, starts: i64, ends: i64) -> Certificate {
    Certificate { pem: name.into(), starts: at(starts), ends: at(ends) }
}

pub(super) fn authority(name: &str, starts: i64, ends: i64) -> Authority {
    Authority { certificate: certificate(name, starts, ends), key: PrivateKey::new("key") }
}

pub(super) fn leaf(name: &str, starts: i64, ends: i64) -> Leaf {
    let names = BTreeSet::from(["guard.svc".to_owned()]);
    Leaf { certificate: certificate(name, starts, ends), key: PrivateKey::new("key"), names }
}

const DWELL: Duration = Duration::from_mins(5);

fn rules() -> Rules {
    Rules { names: BTreeSet::from(["guard.svc".to_owned()]), dwell: DWELL }
}

/// Authority A lives 300 hours, its leaf 30.
fn settled() -> State {
    State::new(authority("A", 0, 300), leaf("a1", 0, 30), Vec::new())
}

fn introducing() -> State {
    settled().introduced(authority("B", 0, 300))
}

fn retiring() -> State {
    introducing().switched(leaf("b1", 0, 30))
}

/// What is decided about a state that clients have trusted for this long, or do not.
fn decided(state: &State, wish: Option<Wish>, steady: Option<Duration>, hours: i64) -> Step {
    let seen = Seen {
        stored: Stored::State(state, wish),
        remembered: None,
        in_order: steady.is_some(),
        steady: steady.unwrap_or_default(),
    };
    decide(&seen, &rules(), at(hours))
}

#[test]
fn each_state_has_its_step() {
    use Change::{Introduce, Make, Renew, Settle, Switch};
    let minutes = |minutes| Some(Duration::from_mins(minutes));
    let (ca, certificate) = (Some(Wish::Authority), Some(Wish::Certificate));
    let mut other_names = settled();
    other_names.leaf.names = BTreeSet::from(["other.svc".to_owned()]);
    let mut more_names = settled();
    more_names.leaf.names.insert("other.svc".to_owned());
    // The leaf cannot live longer than its authority.
    let last = State::new(authority("A", 0, 300), leaf("a9", 270, 300), Vec::new());
    let old_next = settled().introduced(authority("B", -300, 30));
    for (about, state, wish, steady, hours, change) in [
        ("fresh", settled(), None, minutes(60), 1, None),
        ("not published", settled(), None, None, 1, None),
        ("leaf at two thirds", settled(), None, minutes(60), 20, None),
        ("leaf after two thirds", settled(), None, minutes(60), 21, Some(Renew(Why::Age))),
        ("the same, not published", settled(), None, None, 21, Some(Renew(Why::Age))),
        ("leaf has ended", settled(), None, None, 31, Some(Renew(Why::Age))),
        ("names missing", other_names, None, minutes(60), 1, Some(Renew(Why::Names))),
        ("more names than needed", more_names, None, minutes(60), 1, None),
        ("a certificate is asked for", settled(), certificate, None, 1, Some(Renew(Why::Asked))),
        ("a CA is asked for", settled(), ca, None, 1, Some(Introduce(Why::Asked))),
        ("CA after two thirds", last.clone(), None, None, 271, Some(Introduce(Why::Age))),
        ("CA has ended", last, None, minutes(60), 300, Some(Make)),
        ("next not published", introducing(), None, None, 1, None),
        ("next just published", introducing(), None, minutes(0), 1, None),
        ("next published a while ago", introducing(), None, minutes(4), 1, None),
        ("next published long ago", introducing(), None, minutes(5), 1, Some(Switch)),
        ("a CA is asked for meanwhile", introducing(), ca, minutes(4), 1, None),
        ("leaf is old meanwhile", introducing(), None, minutes(9), 21, Some(Renew(Why::Age))),
        ("next is old already", old_next, None, minutes(9), 1, Some(Introduce(Why::Age))),
        ("just switched", retiring(), None, minutes(0), 1, None),
        ("bundle lost after the switch", retiring(), None, None, 1, None),
        ("switched long ago", retiring(), None, minutes(5), 1, Some(Settle)),
        ("a CA is asked for while retiring", retiring(), ca, minutes(4), 1, None),
    ] {
        let step = decided(&state, wish, steady, hours);
        assert_eq!(step.change, change, "{about}");
        assert_eq!(step.publish, steady.is_none(), "{about}");
    }
}

#[test]
fn what_is_waited_for_is_due_at_the_end_of_the_dwell() {
    let due = |state: &State, steady: Option<Duration>| decided(state, None, steady, 1).due;
    assert_eq!(due(&settled(), Some(DWELL)), None);
    assert_eq!(due(&introducing(), None), None);
    assert_eq!(due(&introducing(), Some(Duration::from_mins(1))), Some(Duration::from_mins(4)));
    assert_eq!(due(&retiring(), Some(Duration::ZERO)), Some(DWELL));
}

#[test]
fn without_a_state_it_is_remembered_or_made() {
    let decided = |remembered: Option<&State>, hours| {
        let (in_order, steady) = (false, Duration::ZERO);
        let seen = Seen { stored: Stored::Nothing, remembered, in_order, steady };
        decide(&seen, &rules(), at(hours))
    };
    let only = |change| Step { change: Some(change), publish: false, due: None };
    assert_eq!(decided(None, 1), only(Change::Make));
    assert_eq!(decided(Some(&settled()), 1), only(Change::Restore));
    assert_eq!(decided(Some(&introducing()), 1), only(Change::Restore));
    // It would sign nothing any more.
    assert_eq!(decided(Some(&settled()), 300), only(Change::Make));
}

#[test]
fn bundles_hold_what_is_or_may_be_shown() {
    assert_eq!(settled().bundle(), "A");
    assert_eq!(introducing().bundle(), "AB");
    // The same set is the same text: nothing is to be published at the switch.
    assert_eq!(retiring().bundle(), "AB");
    assert_eq!(retiring().settled().bundle(), "B");
    // What never signed needs no trust.
    assert_eq!(introducing().introduced(authority("C", 0, 300)).bundle(), "AC");
    let inherited = vec![certificate("Z", 0, 300), certificate("A", 0, 300)];
    let state = State::new(authority("A", 0, 300), leaf("a1", 0, 30), inherited);
    assert_eq!((state.bundle(), state.phase()), ("AZ".to_owned(), Phase::Retiring));
}

#[test]
fn a_switch_moves_the_authorities_on() {
    let state = retiring();
    assert_eq!(&*state.signing.certificate.pem, "B");
    assert_eq!(&*state.leaf.certificate.pem, "b1");
    assert_eq!(state.retired, [certificate("A", 0, 300)]);
    assert_eq!((state.next.as_ref(), state.phase()), (None, Phase::Retiring));
    // Without a next one nothing changes, least of all the leaf.
    assert_eq!(settled().switched(leaf("x", 0, 30)), settled());
    assert_eq!(introducing().phase(), Phase::Introducing);
    assert_eq!(state.settled().phase(), Phase::Settled);
}

#[test]
fn steady_counts_looks_without_a_gap() {
    let seconds = Duration::from_secs;
    let mut steady = Steady::default();
    let mut look =
        |state: &State, in_order, at| steady.look(state, in_order, seconds(at), seconds(30));
    assert_eq!(look(&introducing(), true, 10), seconds(0));
    assert_eq!(look(&introducing(), true, 40), seconds(30));
    // Longer than a gap.
    assert_eq!(look(&introducing(), true, 71), seconds(0));
    assert_eq!(look(&introducing(), true, 80), seconds(9));
    // Out of order in between.
    assert_eq!(look(&introducing(), false, 81), seconds(0));
    assert_eq!(look(&introducing(), true, 82), seconds(0));
    // The same bundle, another authority that signs.
    assert_eq!(look(&introducing(), true, 90), seconds(8));
    assert_eq!(look(&retiring(), true, 91), seconds(0));
    assert_eq!(look(&retiring(), true, 95), seconds(4));
    // Another leaf changes nothing.
    assert_eq!(look(&retiring().renewed(leaf("b2", 0, 30)), true, 97), seconds(6));
    steady.lose();
    assert_eq!(steady.look(&retiring(), true, seconds(98), seconds(30)), seconds(0));
}

#[test]
fn what_is_trusted_is_never_given_up_for_what_is_not() {
    assert!(should_serve(true, true));
    assert!(should_serve(true, false));
    assert!(should_serve(false, false));
    assert!(!should_serve(false, true));
}

#[test]
fn debug_hides_keys() {
    let text = format!("{:?}", introducing());
    assert!(text.contains("PrivateKey(..)") && !text.contains("\"key\""), "{text}");
}
