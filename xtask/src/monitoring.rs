//! Checks the dashboard and the alert rules with Prometheus and real servers.

use crate::clients::require;
use crate::step::{StepOutcome, StepReport, built, program, with_time_limit};

pub(crate) fn run(report: &mut StepReport) {
    report.step("monitoring", || test().unwrap_or_else(|ending| ending));
}

fn test() -> Result<StepOutcome, StepOutcome> {
    require(|| program("promtool", &["--version"]).succeeds(), "prometheus", &["prometheus"])?;
    let todana = built("todana").display().to_string();
    Ok(match program("promtool", &["check", "rules", "monitoring/todana-alerts.yml"]).run() {
        StepOutcome::Passed => with_time_limit("python3", &["tests/monitoring/queries.py", &todana]).run(),
        ending => ending,
    })
}
