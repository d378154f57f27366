//! Builds the release executable. Its debug information is in a separate file, to which the
//! executable has a link for debuggers.

use crate::step::{StepOutcome, cargo, program, target_directory};

/// Builds the executable with debug information and then moves that into its own file. The code
/// equals that of `cargo build --release --features cassandra`.
pub(crate) fn run() -> StepOutcome {
    let with_debug_information =
        ["--config", "profile.release.debug=1", "--config", "profile.release.strip=false"];
    let words = ["build", "--release", "--package", "todana-cli", "--features", "cassandra"];
    let built = cargo(&[&words[..], &with_debug_information].concat()).run();
    if !matches!(built, StepOutcome::Passed) {
        return built;
    }
    let executable = target_directory().join("release/todana").display().to_string();
    let debug = format!("{executable}.debug");
    let link = format!("--add-gnu-debuglink={debug}");
    let steps: [&[&str]; 2] =
        [&["--only-keep-debug", &executable, &debug], &["--strip-debug", &link, &executable]];
    for words in steps {
        let outcome = program("objcopy", words).run();
        if !matches!(outcome, StepOutcome::Passed) {
            return outcome;
        }
    }
    for file in [&executable, &debug] {
        let bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        println!("{file}: {:.1} MB", bytes as f64 / 1e6);
    }
    StepOutcome::Passed
}
