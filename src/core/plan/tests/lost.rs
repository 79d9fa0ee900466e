//! Step 5: Metal3Data whose template is gone.

use serde_json::Value;

use super::*;

fn ip_claim(kind: Kind, name: &str, owner: Value) -> Make {
    make(kind, name).set(&["metadata", "ownerReferences"], owner)
}

fn owned(kind: Kind, name: &str) -> Make {
    let owner = json!([{"kind": "Metal3Data", "name": "workers-0", "uid": "uid-workers-0"}]);
    ip_claim(kind, name, owner)
}

#[test]
fn the_controller_only_reports_a_lost_template() {
    let live = data("workers-1").uses("workers");
    let plan = look(&[bound_orphan(), live, owned(Kind::IpClaim, "ip")], YEARS);
    assert_eq!(actions(&plan), []);
    let [wait] = plan.waits.as_slice() else { panic!("{plan:?}") };
    assert_eq!(wait.cause, WaitCause::Lost);
    assert_eq!(wait.names.len(), 2);
    assert!(wait.to_string().contains("unstick --apply"), "{wait}");
    assert!(plan.next_look.is_some());
    assert!(look(&[], YEARS).is_empty());
}

#[test]
fn a_person_frees_lost_data_one_step_after_the_other() {
    for version in VERSIONS {
        let lost = data("workers-0").version(version).uses("workers").for_claim("w-0", 0);
        let dead = lost.clone().terminating();
        let both = dead.clone().finalizers(&[CLAIM_FINALIZER, DATA_FINALIZER]);
        let one = dead.finalizers(&[DATA_FINALIZER]);
        let ip = owned(Kind::IpClaim, "ip-a");
        let address = owned(Kind::IpAddressClaim, "ip-b");
        let person = |objects: &[Make]| look_as(Scope::Person, objects, 0);

        let plan = person(&[lost, ip.clone()]);
        assert_eq!(due(&plan, 0), [(Action::DeleteOrphan, "workers-0".into())]);
        let plan = person(&[both, ip.clone()]);
        assert_eq!(due(&plan, 0), [(Action::FreeOrphan, "workers-0".into())]);
        assert_eq!(actions(&plan).len(), 1);

        let plan = person(&[one.clone(), ip.clone(), address.clone()]);
        let mut deleted = due(&plan, 0);
        deleted.sort();
        assert_eq!(
            deleted,
            [(Action::DeleteIpClaim, "ip-a".into()), (Action::DeleteIpClaim, "ip-b".into())]
        );
        let plan = person(&[one.clone(), ip.terminating(), address]);
        assert_eq!(due(&plan, 0), [(Action::DeleteIpClaim, "ip-b".into())]);
        assert_eq!(causes(&plan), [WaitCause::IpClaims]);
        let plan = person(&[one.clone(), owned(Kind::IpAddressClaim, "ip-b").terminating()]);
        assert_eq!((actions(&plan), causes(&plan)), (vec![], vec![WaitCause::IpClaims]));

        // CAPM3's own finalizer on an IP claim comes off with the data controller only.
        let held = owned(Kind::IpClaim, "ip-a").finalizers(&[DATA_FINALIZER]);
        let plan = person(&[one.clone(), held.clone()]);
        assert_eq!(actions(&plan), [Action::DeleteIpClaim], "a live one is deleted first");
        let plan = person(&[one.clone(), held.terminating()]);
        assert_eq!(due(&plan, 0), [(Action::FreeIpClaim, "ip-a".into())]);

        let plan = person(&[one]);
        assert_eq!(due(&plan, 0), [(Action::FreeLost, "workers-0".into())]);
    }
}

#[test]
fn only_ip_claims_that_the_data_owns_are_deleted() {
    let one = orphan();
    for owner in [
        json!([{"kind": "Metal3Data", "name": "workers-1", "uid": "uid-workers-1"}]),
        json!([{"kind": "Metal3Data", "name": "workers-0", "uid": "of an older one"}]),
        json!([{"kind": "Secret", "name": "workers-0", "uid": "uid-workers-0"}]),
        json!([]),
        json!([{}]),
        json!("Metal3Data"),
    ] {
        let plan = look_as(Scope::Person, &[one.clone(), ip_claim(Kind::IpClaim, "ip", owner)], 0);
        assert_eq!(actions(&plan), [Action::FreeLost]);
    }
    // Read from a file that lost its uids.
    let nameless = json!([{"kind": "Metal3Data", "name": "workers-1"}]);
    let without = one.set(&["metadata", "uid"], "");
    let plan = look_as(Scope::Person, &[without, ip_claim(Kind::IpClaim, "ip", nameless)], 0);
    assert_eq!(actions(&plan), [Action::FreeLost]);
}

#[test]
fn lost_data_with_a_claim_is_not_freed() {
    let plan = look_as(Scope::Person, &[bound_orphan(), claim("w-0").uses("workers")], YEARS);
    assert_eq!((actions(&plan), causes(&plan)), (vec![], vec![WaitCause::NoTemplate]));
}
