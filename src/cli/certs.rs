//! `certs`: a throw-away CA and a serving certificate.

use std::io::Write;

use jiff::Timestamp;

use super::{Failure, Outcome, args::CertsArgs};
use crate::certificates;

pub(super) fn run(args: &CertsArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let failed = |error: certificates::Error| match error {
        certificates::Error::NoNames => Failure::Usage(
            "a certificate needs a name: give --dns NAME or --ip ADDR, for a webhook in a cluster \
             --dns SERVICE.NAMESPACE.svc"
                .into(),
        ),
        certificates::Error::Exists { path } => Failure::Usage(format!(
            "{} already exists; choose another --out, or replace it with --force",
            path.display()
        )),
        other => Failure::Usage(other.to_string()),
    };
    let bundle = certificates::generate(&args.dns, &args.ip, Timestamp::now()).map_err(failed)?;
    for path in bundle.write(&args.out, args.force).map_err(failed)? {
        writeln!(out, "{}", path.display())?;
    }
    Ok(Outcome::Good)
}
