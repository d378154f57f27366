//! `cargo xtask TASK` runs every task of this repository, also in CI.
#![forbid(unsafe_code)]

mod browser;
mod c;
mod cassandra;
mod clients;
mod differential;
mod fuzz;
mod garbage;
#[cfg(test)]
mod links;
mod monitoring;
mod packages;
mod pages;
mod prove;
mod python;
mod release;
mod sanitize;
mod site;
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
use step::{FEATURES, PROFILE, SHARED_BUILD, StepOutcome, StepReport, cargo, target_directory};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run all steps that CI runs
    Test {
        /// Run only this step, or all steps named STEP:...
        #[arg(long)]
        only: Option<String>,
    },
    /// Count violations of the house style, and fail if a figure exceeds its limit
    Tidy {
        /// Lower the limits in xtask/tidy.toml to the figures
        #[arg(long)]
        lower: bool,
        /// Print each place that counts for this figure
        #[arg(long, value_name = "FIGURE")]
        list: Option<String>,
    },
    /// Regenerate the header of the C library
    Header,
    /// Install the release build of the C library, its header, and a pkg-config file
    InstallC {
        /// The folder to install into, such as /usr/local
        #[arg(long)]
        prefix: std::path::PathBuf,
    },
    /// Build the release executable, with its debug information in a separate file
    Release,
    /// Render README and docs/ as a site with search, into target/site/book
    Site,
    /// Build the packages into target/packages: debian, image, archive, wheel
    Package {
        /// Only this package
        package: Option<String>,
        /// The folder from which users will download the archive; writes Homebrew's formula
        #[arg(long)]
        url: Option<String>,
    },
    /// Run all checks that take too long for the tests, or one of them
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
    let mut report = StepReport::default();
    match Arguments::parse_from(with_old_names(std::env::args_os().collect())).task {
        Task::Test { only } => test(&mut report, only.as_deref()),
        Task::Tidy { lower, list } => report.step("tidy", || tidy::run(lower, list.as_deref())),
        Task::Header => report.step("header", c::header),
        Task::InstallC { prefix } => {
            // The prefix is relative to the folder that the task was called from.
            let prefix = called_from.join(prefix);
            report.step("install", || c::install(&prefix));
        }
        Task::Release => report.step("release", release::run),
        Task::Site => report.step("site", site::run),
        Task::Package { package, url } => packages::build(&mut report, package.as_deref(), url.as_deref()),
        Task::Prove { proof: Some(proof) } => proof.run(&mut report, &called_from),
        Task::Prove { proof: None } => prove::all(&mut report),
    }
    report.finish()
}

/// Inserts `prove` before the name of a proof, because proofs once were tasks of their own.
fn with_old_names(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_proof = |word: &OsString| Proof::has_subcommand(&word.to_string_lossy());
    if words.get(1).is_some_and(is_proof) {
        words.insert(1, "prove".into());
    }
    words
}

/// Runs all steps, the quick ones first.
fn test(report: &mut StepReport, only: Option<&str>) {
    report.only(only);
    report.step("room", check_room);
    // All crates are fetched before the first step, so that no step prints the progress of a
    // download. A step that lacks a crate afterwards reports it.
    for manifest in ["Cargo.toml", "bindings/c/header/Cargo.toml"] {
        cargo(&["fetch", "--locked", "--manifest-path", manifest]).succeeds();
    }
    report.step("format", || cargo(&["fmt", "--all", "--check"]).run());
    report.step("tidy", || tidy::run(false, None));
    report.step("clippy", || {
        let words = ["clippy", "--workspace", "--features", FEATURES, "--all-targets"];
        cargo(&[&words[..], &["--profile", PROFILE, "--", "-D", "warnings"]].concat()).run()
    });
    tests::run(report);
    c::run(report);
    report.step("site", site::test);
    report.step("docs", || {
        let words = ["doc", "--workspace", "--no-deps", "--exclude", "todana-cli"];
        cargo(&[&words[..], &["--features", "todana-server/cassandra", "--profile", PROFILE]].concat())
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()
    });
    if ["clients", "browser", "monitoring", "packages", "garbage", "soak", "differential", "pages"]
        .iter()
        .any(|step| report.wants(step))
    {
        build(report);
    }
    clients::run(report);
    browser::run(report);
    monitoring::run(report);
    packages::test(report);
    python::run(report);
    report.step("garbage", || garbage::run(2_000));
    report.step("soak", || soak::run(Duration::from_secs(20), None));
    report.step("differential", || differential::run_installed(50_000));
    pages::run(report);
    sanitize::short(report);
    cassandra::run(report);
}

/// Checks that the disk has room for the build. Without this step, a full disk kills the linker
/// many steps later.
fn check_room() -> StepOutcome {
    const NEEDED_MIB: u64 = 5 << 10;
    let target = target_directory();
    if let Err(error) = std::fs::create_dir_all(&target) {
        return StepOutcome::Failed(format!("cannot create {}: {error}", target.display()));
    }
    let free_mib = match free_mib(&target) {
        Some(free) => free,
        None => return StepOutcome::Skipped("df does not report the free space".into()),
    };
    println!("{free_mib} MiB are free for {}", target.display());
    // A target folder with an earlier build needs less room.
    if free_mib < NEEDED_MIB && !target.join(PROFILE).exists() {
        return StepOutcome::Failed(format!(
            "{}: {free_mib} MiB are free, but a first build needs about {NEEDED_MIB} MiB; \
             set CARGO_TARGET_DIR to build elsewhere",
            target.display()
        ));
    }
    StepOutcome::Passed
}

fn free_mib(folder: &std::path::Path) -> Option<u64> {
    let answer = std::process::Command::new("df").arg("-Pm").arg(folder).output().ok()?;
    let answer = String::from_utf8(answer.stdout).ok()?;
    answer.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

/// Builds the server that the steps with clients start.
pub(crate) fn build(report: &mut StepReport) {
    report.step("build", || cargo(&SHARED_BUILD).run());
}
