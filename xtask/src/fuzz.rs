//! Fuzzing with cargo-fuzz on the nightly toolchain.

use crate::step::{Outcome, Report, nightly, program};
use std::path::Path;

/// Where cargo-fuzz is put if the machine has none.
const TOOLS: &str = "target/tools";

pub(crate) fn run(report: &mut Report, only: Option<&str>, seconds: u32) {
    if !report.wants("fuzz") {
        return report.knows("fuzz");
    }
    let targets = targets();
    if let Err(why) = ready() {
        return report.step("fuzz", || Outcome::Skipped(why));
    }
    let chosen: Vec<&String> =
        targets.iter().filter(|target| only.is_none_or(|only| only == target.as_str())).collect();
    if chosen.is_empty() {
        let known = targets.join(", ");
        return report.step("fuzz", || Outcome::Failed(format!("no such target; there are: {known}")));
    }
    if only.is_none() {
        // Before hours of fuzzing: the last target may be the one that does not compile.
        report.step("fuzz: build", || {
            nightly(&["fuzz", "build"]).path_first(&Path::new(TOOLS).join("bin")).run()
        });
    }
    for target in chosen {
        report.step(&format!("fuzz: {target}"), || {
            let mut words: Vec<String> = ["fuzz", "run", target].into_iter().map(String::from).collect();
            let corpus = format!("fuzz/corpus/{target}");
            if let Err(error) = std::fs::create_dir_all(&corpus) {
                return Outcome::Failed(format!("cannot make {corpus}: {error}"));
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
            // A scoped thread that has told that it is done may still have its thread-locals, which
            // is taken for a leak now and then; what leaks in earnest the tests under
            // AddressSanitizer find.
            words.push("-detect_leaks=0".into());
            // New finds of a short run are not worth keeping in the tree.
            let scratch = format!("fuzz/target/corpus/{target}");
            if seconds < 300 && std::fs::create_dir_all(&scratch).is_ok() {
                words.insert(3, scratch);
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            nightly(&words).path_first(&Path::new(TOOLS).join("bin")).run()
        });
    }
}

/// The targets, as the manifest names them.
fn targets() -> Vec<String> {
    let manifest = std::fs::read_to_string("fuzz/Cargo.toml").unwrap_or_default();
    let bins = manifest.split("[[bin]]").skip(1);
    let name = |bin: &str| Some(bin.split_once("name = \"")?.1.split_once('"')?.0.to_string());
    bins.filter_map(name).collect()
}

/// Whether fuzzing can be done here, and if not, why.
fn ready() -> Result<(), String> {
    if !nightly(&["--version"]).succeeds() {
        return Err("there is no nightly toolchain".into());
    }
    let has = program("sh", &["-c", "command -v cargo-fuzz"]).succeeds()
        || Path::new(TOOLS).join("bin/cargo-fuzz").exists();
    if has || nightly(&["install", "cargo-fuzz", "--locked", "--root", TOOLS]).succeeds() {
        Ok(())
    } else {
        Err("cargo-fuzz is not there and could not be installed".into())
    }
}
