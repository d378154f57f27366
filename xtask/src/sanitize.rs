//! Runs the engine's tests under AddressSanitizer (nightly toolchain) and valgrind.

use crate::step::{PROFILE, StepOutcome, StepReport, nightly, program};

/// Runs the engine's unit tests, which reach all of its unsafe code, with few cases per property.
pub(crate) fn short(report: &mut StepReport) {
    report.step("sanitizer", || address_sanitizer(&["--lib"], 6));
}

/// Runs all of the engine's tests under AddressSanitizer, and a selection under valgrind.
pub(crate) fn full(report: &mut StepReport) {
    report.step("sanitizer", || address_sanitizer(&["--lib", "--tests"], 200));
    valgrind(report, "valgrind", IN_MEMORY);
    valgrind(report, "valgrind:disk", ON_DISK);
}

/// Runs tests under AddressSanitizer. Doc tests are left out, because they are not built with it.
fn address_sanitizer(tests: &[&str], cases: u32) -> StepOutcome {
    if !nightly(&["--version"]).succeeds() {
        return StepOutcome::Skipped(
            "AddressSanitizer: needs the nightly toolchain, which is not installed".into(),
        );
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let words = ["test", "--package", "todana-engine", "--target", &target, "--profile", PROFILE];
    nightly(&[&words[..], tests].concat())
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", "target/sanitizer")
        .env("TODANA_CASES", &cases.to_string())
        .run()
}

/// Patterns of test programs, and the filters for the tests that valgrind runs in them. Valgrind
/// runs only a selection because it takes fifty times as long.
type TestSelection = [(&'static str, &'static str)];

const IN_MEMORY: &TestSelection = &[("*", "raw:: record:: decimal:: agrees_with")];

/// Tests of mapped files and of LMDB, whose C code AddressSanitizer does not check.
const ON_DISK: &TestSelection = &[
    ("todana_engine", "disk_hash::entry disk_hash::sweep disk_tree:: raw::lmdb raw::mapped_file"),
    (
        "conformance",
        "disk_hash::random disk_hash::values_of disk_hash::sweep_removes disk_hash::every_key \
         disk_tree::random disk_tree::values_of disk_tree::sweep_removes disk_tree::every_key",
    ),
    ("disk_hash_crash", "full_disk failed_sync copy_has"),
    ("disk_hash_recovery", "copy_after"),
    ("disk_hash_damage", ""),
    ("disk_hash_small_segments", ""),
    ("disk_tree_checkpoint", "--skip gibibyte"),
];

fn valgrind(report: &mut StepReport, name: &str, selection: &TestSelection) {
    report.step(name, || {
        if !program("sh", &["-c", "command -v valgrind"]).succeeds() {
            return StepOutcome::Skipped("valgrind: not installed".into());
        }
        let cases: String =
            selection.iter().map(|(test, words)| format!("{test}) words='{words}';; ")).collect();
        let script = format!(
            "built=$(cargo test --package todana-engine --lib --tests --no-run --message-format=json 2>/dev/null) || exit 1; \
            printf '%s\n' \"$built\" | grep -o '\"executable\":\"[^\"]*\"' | cut -d'\"' -f4 \
            | while read -r test; do name=$(basename \"$test\"); \
              case ${{name%-*}} in {cases}*) continue;; esac; \
              TODANA_CASES=1 PROPTEST_CASES=1 timeout 900 valgrind --quiet --error-exitcode=9 \"$test\" \
              --test-threads=1 $words || exit 1; done"
        );
        program("sh", &["-c", &script]).run()
    });
}
