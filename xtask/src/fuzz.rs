//! Fuzzing with cargo-fuzz on the nightly toolchain.

use crate::step::{StepOutcome, StepReport, nightly, program};
use std::path::Path;

/// The folder into which cargo-fuzz is installed if the machine has none.
const TOOLS: &str = "target/tools";

pub(crate) fn run(report: &mut StepReport, only: Option<&str>, seconds: u32) {
    if !report.wants("fuzz") {
        return report.add_name("fuzz");
    }
    let targets = targets();
    if let Err(why) = prepare() {
        return report.step("fuzz", || StepOutcome::Skipped(why));
    }
    let chosen: Vec<&String> =
        targets.iter().filter(|target| only.is_none_or(|only| only == target.as_str())).collect();
    if chosen.is_empty() {
        let known = targets.join(", ");
        return report
            .step("fuzz", || StepOutcome::Failed(format!("no such fuzz target; the targets are: {known}")));
    }
    if only.is_none() {
        // All targets are built before hours of fuzzing, because the last one may not compile.
        report.step("fuzz: build", || {
            nightly(&["fuzz", "build"]).path_first(&Path::new(TOOLS).join("bin")).run()
        });
    }
    for target in chosen {
        report.step(&format!("fuzz: {target}"), || {
            let mut words: Vec<String> = ["fuzz", "run", target].into_iter().map(String::from).collect();
            let corpus = format!("fuzz/corpus/{target}");
            if let Err(error) = std::fs::create_dir_all(&corpus) {
                return StepOutcome::Failed(format!("{corpus}: cannot create: {error}"));
            }
            words.push(corpus);
            let seeds = format!("fuzz/seeds/{target}");
            if Path::new(&seeds).exists() {
                words.push(seeds);
            }
            words.extend(["--".into(), format!("-max_total_time={seconds}")]);
            words.extend(
                ["-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1", "-verbosity=0"]
                    .map(String::from),
            );
            // Leak detection is off because it sometimes reports the thread-locals of a scoped
            // thread that has finished. The tests under AddressSanitizer find real leaks.
            words.push("-detect_leaks=0".into());
            // A short run writes its new inputs to a scratch folder, not into the repository.
            let scratch = format!("fuzz/target/corpus/{target}");
            if seconds < 300 && std::fs::create_dir_all(&scratch).is_ok() {
                words.insert(3, scratch);
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            nightly(&words).path_first(&Path::new(TOOLS).join("bin")).run()
        });
    }
}

/// Returns the names of the targets in the manifest.
fn targets() -> Vec<String> {
    let manifest = std::fs::read_to_string("fuzz/Cargo.toml").unwrap_or_default();
    let bins = manifest.split("[[bin]]").skip(1);
    let name = |bin: &str| Some(bin.split_once("name = \"")?.1.split_once('"')?.0.to_string());
    bins.filter_map(name).collect()
}

/// Installs cargo-fuzz if it is missing. Fails with the reason if fuzzing is not possible here.
fn prepare() -> Result<(), String> {
    if !nightly(&["--version"]).succeeds() {
        return Err("nightly toolchain: not installed".into());
    }
    let has = program("sh", &["-c", "command -v cargo-fuzz"]).succeeds()
        || Path::new(TOOLS).join("bin/cargo-fuzz").exists();
    if has || nightly(&["install", "cargo-fuzz", "--locked", "--root", TOOLS]).succeeds() {
        Ok(())
    } else {
        Err("cargo-fuzz: cannot be installed".into())
    }
}
