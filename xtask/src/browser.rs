//! Opens the admin page in a real browser.

use crate::clients::{npm, require};
use crate::step::{StepOutcome, StepReport, built, program, target_directory, with_time_limit};

const CHROMIUM: &str = "/usr/bin/chromium";

pub(crate) fn run(report: &mut StepReport) {
    report.step("browser", || test().unwrap_or_else(|ending| ending));
}

fn test() -> Result<StepOutcome, StepOutcome> {
    require(|| program(CHROMIUM, &["--version"]).succeeds(), "chromium", &["chromium"])?;
    npm("playwright-core@1.64.1")?;
    let modules = npm("axe-core@4.14.1")?;
    let screenshots = target_directory().join("admin-page").display().to_string();
    let executable = built("todana").display().to_string();
    println!("screenshots: {screenshots}");
    Ok(with_time_limit("node", &["tests/browser/admin_page.js", &executable, &screenshots])
        .env("NODE_PATH", &modules)
        .run())
}
