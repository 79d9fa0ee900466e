//! `certs`: a throw-away CA and a serving certificate.

use std::io::Write;

use jiff::Timestamp;

use super::{Failure, Outcome, args::CertsArgs};
use crate::certificates;

pub(super) fn run(args: &CertsArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let failed = |error: certificates::Error| Failure::Usage(error.to_string());
    let bundle = certificates::generate(&args.dns, &args.ip, Timestamp::now()).map_err(failed)?;
    for path in bundle.write(&args.out, args.force).map_err(failed)? {
        writeln!(out, "{}", path.display())?;
    }
    Ok(Outcome::Good)
}
