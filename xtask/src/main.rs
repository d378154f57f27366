//! `cargo xtask TASK`: the only spelling of a task in this repository; CI calls the same.
#![forbid(unsafe_code)]

mod c;
mod clients;
mod differential;
mod fuzz;
mod garbage;
mod python;
mod readme;
mod sanitize;
mod soak;
mod step;
#[cfg(test)]
mod unsafe_code;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;
use step::{Outcome, Report, cargo, target_directory};

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
    /// Make the header of the C library anew
    Header,
    /// Build the C library as it is released, and put it with its header and a pkg-config file below a folder
    InstallC {
        /// The folder, say /usr/local
        #[arg(long)]
        prefix: std::path::PathBuf,
    },
    /// Fuzz every target, or one
    Fuzz {
        /// The target
        target: Option<String>,
        /// Minutes for each
        #[arg(long, default_value_t = 10)]
        minutes: u32,
    },
    /// Run the engine's tests under AddressSanitizer, in full, and its unsafe part and what is on disk under valgrind
    Sanitize,
    /// Lose power at every operation that sessions make on their disk, in several ways, and open what is left; kill 200 processes
    /// that write to each kind of database; flip 10,000 bits of large files
    Crash,
    /// Prove what takes too long for the tests
    #[command(subcommand)]
    Prove(Proof),
    /// Throw garbage sessions at a live server
    Garbage {
        /// How many
        #[arg(long, default_value_t = 100_000)]
        sessions: u32,
    },
    /// Send random requests to a memcached and to this server, and compare the answers
    Differential {
        /// The executable of memcached
        memcached: std::path::PathBuf,
        /// How many requests
        #[arg(long, default_value_t = 1_000_000)]
        requests: u64,
        /// Repeats the requests of a run that printed it
        #[arg(long)]
        seed: Option<u64>,
        /// This executable of Todana, instead of a fresh build
        #[arg(long, value_name = "FILE")]
        todana: Option<std::path::PathBuf>,
    },
    /// Soak live servers in requests of all kinds and in faults, and check every reply
    Soak {
        /// For how long
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Repeats the requests of a run that printed it
        #[arg(long)]
        seed: Option<u64>,
    },
}

#[derive(Subcommand)]
enum Proof {
    /// Have pairs, chains and replicas converge after each round of writes, while lines are cut, processes killed and machines lose
    /// their power
    Replication {
        /// How many rounds
        #[arg(long, default_value_t = 20_000)]
        rounds: u32,
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
    match Arguments::parse().task {
        Task::Test { only } => test(&mut report, only.as_deref()),
        Task::Header => report.step("header", c::header),
        Task::InstallC { prefix } => {
            // Relative to where the user stands.
            let prefix = called_from.join(prefix);
            report.step("install", || c::install(&prefix));
        }
        Task::Fuzz { target, minutes } => fuzz::run(&mut report, target.as_deref(), minutes * 60),
        Task::Sanitize => sanitize::run(&mut report, None),
        Task::Crash => report.step("crash", || {
            let mut words = vec!["test", "-p", "todana", "-p", "todana-engine", "--profile", "fast"];
            let of_engine = ["disk_hash_crash", "disk_hash_recovery", "disk_hash_damage_crash"];
            let tests =
                ["crash", "crash_engines", "killed", "generations", "bits"].into_iter().chain(of_engine);
            tests.for_each(|test| words.extend(["--test", test]));
            words.extend(["--", "--nocapture"]);
            cargo(&words).env("TODANA_CRASH", "full").env("TODANA_KILLS", "200").run()
        }),
        Task::Prove(Proof::Replication { rounds }) => report.step("replication", || {
            let test = ["test", "-p", "todana-server", "--profile", "fast", "--test", "replication_rounds"];
            cargo(&[&test[..], &["--", "--nocapture"]].concat())
                .env("TODANA_ROUNDS", &rounds.to_string())
                .run()
        }),
        Task::Garbage { sessions } => {
            build(&mut report);
            report.step("garbage", || garbage::run(sessions));
        }
        Task::Differential { memcached, requests, seed, todana } => {
            // Relative to where the user stands.
            let (memcached, todana) =
                (called_from.join(memcached), todana.map(|path| called_from.join(path)));
            if todana.is_none() {
                build(&mut report);
            }
            let todana = todana.unwrap_or_else(|| target_directory().join("fast/todana"));
            report.step("differential", || differential::run(&memcached, &todana, requests, seed));
        }
        Task::Soak { minutes, seed } => {
            build(&mut report);
            let length = Duration::from_secs_f64(minutes.clamp(0.05, 24.0 * 60.0) * 60.0);
            report.step("soak", || soak::run(length, seed));
        }
    }
    report.finish()
}

/// All steps, the quick ones first.
fn test(report: &mut Report, only: Option<&str>) {
    report.only(only);
    report.step("room", room);
    // Quietly and at once, so that the steps' output is theirs alone. What is missing afterwards the steps will name.
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml", "bindings/c/header/Cargo.toml"] {
        cargo(&["fetch", "--locked", "--manifest-path", manifest]).succeeds();
    }
    report.step("format", || cargo(&["fmt", "--all", "--check"]).run());
    report.step("clippy", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--profile", "fast", "--", "-D", "warnings"]).run()
    });
    // `fast`: optimised as the server is, so that the property tests get through many cases.
    report.step("tests", || cargo(&["test", "--workspace", "--no-fail-fast", "--profile", "fast"]).run());
    c::run(report);
    report.step("docs", || {
        cargo(&["doc", "--workspace", "--no-deps", "--exclude", "todana-cli"])
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()
    });
    if ["clients", "garbage", "soak", "differential", "readme"].iter().any(|step| report.wants(step)) {
        build(report);
    }
    clients::run(report);
    python::run(report);
    report.step("garbage", || garbage::run(2_000));
    report.step("soak", || soak::run(Duration::from_secs(20), None));
    report.step("differential", differential::run_installed);
    readme::run(report);
    fuzz::run(report, None, 10);
    sanitize::run(report, Some(6));
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
    if free_mib < NEEDED_MIB && !target.join("fast").exists() {
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
fn build(report: &mut Report) {
    report.step("build", || cargo(&["build", "--profile", "fast", "--package", "todana-cli"]).run());
}
