//! Proofs that take too long for the tests.

use crate::step::{Outcome, PROFILE, Report, built, cargo};
use crate::{build, differential, fuzz, garbage, sanitize, soak};
use clap::Subcommand;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Proof {
    /// Run the engine's tests under AddressSanitizer, in full, and its unsafe part and what is on
    /// disk under valgrind
    Sanitize,
    /// Fuzz every target, or one
    Fuzz {
        /// The target
        target: Option<String>,
        /// Minutes for each
        #[arg(long, default_value_t = 10)]
        minutes: u32,
    },
    /// Lose power at every operation that sessions make on their disk, in several ways, and open
    /// what is left; kill 200 processes that write to each kind of database; flip 10,000 bits of
    /// large files
    Crash,
    /// Have pairs, chains and replicas converge after each round of writes, while lines are cut,
    /// processes killed and machines lose their power
    Replication {
        /// How many rounds
        #[arg(long, default_value_t = 20_000)]
        rounds: u32,
    },
    /// Throw garbage sessions at a live server
    Garbage {
        /// How many
        #[arg(long, default_value_t = 100_000)]
        sessions: u32,
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
    /// Send random requests to a memcached and to this server, and compare the answers
    Differential {
        /// The executable of memcached
        memcached: PathBuf,
        /// How many requests
        #[arg(long, default_value_t = 1_000_000)]
        requests: u64,
        /// Repeats the requests of a run that printed it
        #[arg(long)]
        seed: Option<u64>,
        /// This executable of Todana, instead of a fresh build
        #[arg(long, value_name = "FILE")]
        todana: Option<PathBuf>,
    },
}

/// Proves all, the quick ones first. The memcached is the one that is installed.
pub(crate) fn all(report: &mut Report) {
    build(report);
    report.step("garbage", || garbage::run(100_000));
    report.step("differential", || differential::run_installed(1_000_000));
    report.step("soak", || soak::run(Duration::from_secs(600), None));
    report.step("crash", crash);
    report.step("replication", || replication(20_000));
    sanitize::full(report);
    fuzz::run(report, None, 600);
}

impl Proof {
    /// Runs it. Paths are relative to the folder that the task was called from.
    pub(crate) fn run(self, report: &mut Report, called_from: &Path) {
        match self {
            Proof::Sanitize => sanitize::full(report),
            Proof::Fuzz { target, minutes } => fuzz::run(report, target.as_deref(), minutes * 60),
            Proof::Crash => report.step("crash", crash),
            Proof::Replication { rounds } => report.step("replication", || replication(rounds)),
            Proof::Garbage { sessions } => {
                build(report);
                report.step("garbage", || garbage::run(sessions));
            }
            Proof::Soak { minutes, seed } => {
                build(report);
                let length = Duration::from_secs_f64(minutes.clamp(0.05, 24.0 * 60.0) * 60.0);
                report.step("soak", || soak::run(length, seed));
            }
            Proof::Differential { memcached, requests, seed, todana } => {
                if todana.is_none() {
                    build(report);
                }
                let todana = todana.map_or_else(|| built("todana"), |path| called_from.join(path));
                let memcached = called_from.join(memcached);
                report.step("differential", || differential::run(&memcached, &todana, requests, seed));
            }
        }
    }
}

fn crash() -> Outcome {
    let mut words = vec!["test", "-p", "todana", "-p", "todana-engine", "--profile", PROFILE];
    let of_engine = ["disk_hash_crash", "disk_hash_recovery", "disk_hash_damage_crash"];
    let tests = ["crash", "crash_engines", "killed", "generations", "bits"].into_iter().chain(of_engine);
    tests.for_each(|test| words.extend(["--test", test]));
    words.extend(["--", "--nocapture"]);
    cargo(&words).env("TODANA_CRASH", "full").env("TODANA_KILLS", "200").run()
}

fn replication(rounds: u32) -> Outcome {
    let test = ["test", "-p", "todana-server", "--profile", PROFILE, "--test", "replication_rounds"];
    cargo(&[&test[..], &["--", "--nocapture"]].concat()).env("TODANA_ROUNDS", &rounds.to_string()).run()
}
