//! `cargo xtask TASK`: the only spelling of a task in this repository; CI calls the same.
#![forbid(unsafe_code)]

mod c;
mod clients;
mod differential;
mod fuzz;
mod garbage;
#[cfg(test)]
mod links;
mod pages;
mod prove;
mod python;
mod release;
mod sanitize;
mod soak;
mod step;
mod tests;
mod tidy;
#[cfg(test)]
mod unsafe_code;

use clap::{Parser, Subcommand};
use prove::Proof;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use step::{Outcome, PROFILE, Report, SHARED_BUILD, cargo, target_directory};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run all tests: what CI runs
    Test {
        /// Only this step
        #[arg(long)]
        only: Option<String>,
    },
    /// Count what the house style counts, and fail where a figure exceeds its limit
    Tidy {
        /// Lower the limits in xtask/tidy.toml to the figures
        #[arg(long)]
        lower: bool,
        /// Print each place that counts for this figure
        #[arg(long, value_name = "FIGURE")]
        list: Option<String>,
    },
    /// Make the header of the C library anew
    Header,
    /// Build the C library as it is released, and put it with its header and a pkg-config file
    /// below a folder
    InstallC {
        /// The folder, say /usr/local
        #[arg(long)]
        prefix: std::path::PathBuf,
    },
    /// Build the executable as it is released, and put its debug information into a file beside it
    Release,
    /// Prove what takes too long for the tests: all of it, or one thing
    Prove {
        #[command(subcommand)]
        proof: Option<Proof>,
    },
}

fn main() -> ExitCode {
    let root =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let called_from = std::env::current_dir().unwrap_or_default();
    if let Err(error) = std::env::set_current_dir(root) {
        eprintln!("cannot enter {}: {error}", root.display());
        return ExitCode::FAILURE;
    }
    let mut report = Report::default();
    match Arguments::parse_from(with_old_names(std::env::args_os().collect())).task {
        Task::Test { only } => test(&mut report, only.as_deref()),
        Task::Tidy { lower, list } => report.step("tidy", || tidy::run(lower, list.as_deref())),
        Task::Header => report.step("header", c::header),
        Task::InstallC { prefix } => {
            // Relative to where the user stands.
            let prefix = called_from.join(prefix);
            report.step("install", || c::install(&prefix));
        }
        Task::Release => report.step("release", release::run),
        Task::Prove { proof: Some(proof) } => proof.run(&mut report, &called_from),
        Task::Prove { proof: None } => prove::all(&mut report),
    }
    report.finish()
}

/// Proofs were tasks by themselves once, and may be called so.
fn with_old_names(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_proof = |word: &OsString| Proof::has_subcommand(&word.to_string_lossy());
    if words.get(1).is_some_and(is_proof) {
        words.insert(1, "prove".into());
    }
    words
}

/// All steps, the quick ones first.
fn test(report: &mut Report, only: Option<&str>) {
    report.only(only);
    report.step("room", room);
    // Quietly and at once, so that the steps' output is theirs alone. What is missing afterwards
    // the steps will name.
    for manifest in ["Cargo.toml", "bindings/c/header/Cargo.toml"] {
        cargo(&["fetch", "--locked", "--manifest-path", manifest]).succeeds();
    }
    report.step("format", || cargo(&["fmt", "--all", "--check"]).run());
    report.step("tidy", || tidy::run(false, None));
    report.step("clippy", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--profile", PROFILE, "--", "-D", "warnings"]).run()
    });
    tests::run(report);
    c::run(report);
    report.step("docs", || {
        cargo(&["doc", "--workspace", "--no-deps", "--exclude", "todana-cli", "--profile", PROFILE])
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()
    });
    if ["clients", "garbage", "soak", "differential", "pages"].iter().any(|step| report.wants(step)) {
        build(report);
    }
    clients::run(report);
    python::run(report);
    report.step("garbage", || garbage::run(2_000));
    report.step("soak", || soak::run(Duration::from_secs(20), None));
    report.step("differential", || differential::run_installed(50_000));
    pages::run(report);
    sanitize::short(report);
}

/// A full disk shows itself as a linker that dies, twenty steps later; better said at once.
fn room() -> Outcome {
    const NEEDED_MIB: u64 = 5 << 10;
    let target = target_directory();
    if let Err(error) = std::fs::create_dir_all(&target) {
        return Outcome::Failed(format!("cannot make {}: {error}", target.display()));
    }
    let free_mib = match free_mib(&target) {
        Some(free) => free,
        None => return Outcome::Skipped("df does not tell how much room there is".into()),
    };
    println!("{free_mib} MiB are free for {}", target.display());
    // A folder that was built before holds what the steps need.
    if free_mib < NEEDED_MIB && !target.join(PROFILE).exists() {
        return Outcome::Failed(format!(
            "{free_mib} MiB are free for {}, and a first build takes some {NEEDED_MIB}; \
             CARGO_TARGET_DIR can name another place",
            target.display()
        ));
    }
    Outcome::Passed
}

fn free_mib(folder: &std::path::Path) -> Option<u64> {
    let answer = std::process::Command::new("df").arg("-Pm").arg(folder).output().ok()?;
    let answer = String::from_utf8(answer.stdout).ok()?;
    answer.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

/// The server that the steps with clients start.
pub(crate) fn build(report: &mut Report) {
    report.step("build", || cargo(&SHARED_BUILD).run());
}
