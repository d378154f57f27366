//! The engine under AddressSanitizer (nightly toolchain) and valgrind.

use crate::step::{Outcome, PROFILE, Report, nightly, program};

/// The engine's own tests, which reach all of its unsafe part, with few cases of each property.
pub(crate) fn short(report: &mut Report) {
    report.step("sanitizer", || address_sanitizer(&["--lib"], 6));
}

/// All of the engine's tests, and valgrind.
pub(crate) fn full(report: &mut Report) {
    report.step("sanitizer", || address_sanitizer(&["--lib", "--tests"], 200));
    valgrind(report, "valgrind", IN_MEMORY);
    valgrind(report, "valgrind:disk", ON_DISK);
}

/// Doc tests are not built with the sanitizer.
fn address_sanitizer(tests: &[&str], cases: u32) -> Outcome {
    if !nightly(&["--version"]).succeeds() {
        return Outcome::Skipped("AddressSanitizer needs the nightly toolchain, which is not there".into());
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let words = ["test", "--package", "todana-engine", "--target", &target, "--profile", PROFILE];
    nightly(&[&words[..], tests].concat())
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", "target/sanitizer")
        .env("TODANA_CASES", &cases.to_string())
        .run()
}

/// Patterns of test programs, and of their tests those that valgrind runs: it takes fifty times as
/// long.
type Selection = [(&'static str, &'static str)];

const IN_MEMORY: &Selection = &[("*", "raw:: record:: decimal:: agrees_with")];

/// Tests of mapped files and of LMDB, whose C code AddressSanitizer does not check.
const ON_DISK: &Selection = &[
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

fn valgrind(report: &mut Report, name: &str, selection: &Selection) {
    report.step(name, || {
        if !program("sh", &["-c", "command -v valgrind"]).succeeds() {
            return Outcome::Skipped("valgrind is not installed".into());
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
