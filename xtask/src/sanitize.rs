//! The engine under AddressSanitizer (nightly toolchain) and valgrind.

use crate::step::{Outcome, Report, nightly, program};

/// `cases`: how many cases each property runs; `None` for the full number.
pub(crate) fn run(report: &mut Report, cases: Option<u32>) {
    report.step("sanitizer", || {
        if !nightly(&["--version"]).succeeds() {
            return Outcome::Skipped(
                "AddressSanitizer needs the nightly toolchain, which is not there".into(),
            );
        }
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut words = vec!["test", "--package", "todana-engine", "--target", &target, "--profile", "fast"];
        // Doc tests are not built with the sanitizer.
        words.extend(["--lib", "--tests"]);
        let run = nightly(&words)
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env("CARGO_TARGET_DIR", "target/sanitizer");
        match cases {
            Some(cases) => run.env("TODANA_CASES", &cases.to_string()).run(),
            None => run.env("TODANA_CASES", "200").run(),
        }
    });
    if cases.is_none() {
        report.step("valgrind", || {
            if !program("sh", &["-c", "command -v valgrind"]).succeeds() {
                return Outcome::Skipped("valgrind is not installed".into());
            }
            let script = "cargo test --package todana-engine --lib --tests --no-run --message-format=json 2>/dev/null \
                | grep -o '\"executable\":\"[^\"]*\"' | cut -d'\"' -f4 \
                | while read -r test; do TODANA_CASES=1 PROPTEST_CASES=1 valgrind --quiet --error-exitcode=9 \"$test\" \
                  --test-threads=1 raw:: record:: decimal:: agrees_with || exit 1; done";
            program("sh", &["-c", script]).run()
        });
    }
}
