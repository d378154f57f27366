//! Checks the dashboard and the alert rules with Prometheus and real servers.

use crate::step::{StepOutcome, StepReport, built, install_debian, program, with_time_limit};

pub(crate) fn run(report: &mut StepReport) {
    report.step("monitoring", test);
}

fn test() -> StepOutcome {
    let is_installed = || program("promtool", &["--version"]).succeeds();
    if !(is_installed() || install_debian(&["prometheus"]) && is_installed()) {
        return StepOutcome::Skipped("prometheus: not installed".into());
    }
    match program("promtool", &["check", "rules", "monitoring/todana-alerts.yml"]).run() {
        StepOutcome::Passed => {
            let todana = built("todana").display().to_string();
            with_time_limit("python3", &["tests/monitoring/queries.py", &todana]).run()
        }
        ending => ending,
    }
}
