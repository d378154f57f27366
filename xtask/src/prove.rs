//! Checks that take too long for the tests.

use crate::step::{PROFILE, StepOutcome, StepReport, built, cargo};
use crate::{build, cassandra, differential, fuzz, garbage, packages, sanitize, soak};
use clap::Subcommand;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Proof {
    /// Run all tests of the engine under AddressSanitizer, and those of its unsafe code and its
    /// files under valgrind
    Sanitize,
    /// Fuzz all targets, or one
    Fuzz {
        /// The fuzz target; all if omitted
        target: Option<String>,
        /// Minutes per target
        #[arg(long, default_value_t = 10)]
        minutes: u32,
    },
    /// Simulate a power failure at every disk operation of several sessions and recover; kill 200
    /// processes that write to each kind of database; flip 10,000 bits of large files
    Crash,
    /// Check that pairs, chains and replicas converge after each round of writes, while connections
    /// fail, processes are killed and machines lose power
    Replication {
        /// Number of rounds
        #[arg(long, default_value_t = 20_000)]
        rounds: u32,
    },
    /// Simulate servers that replicate each other in Todana's own protocol, with cuts, deaths and
    /// losses of power, and compare their records
    ReplicationNative {
        /// Number of simulations
        #[arg(long, default_value_t = 100_000)]
        seeds: u64,
        /// The first seed, as an earlier run printed it
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Kill servers and cut connections in eight networks, while clients write with all attributes,
    /// and compare all records
    ReplicationKills {
        /// Number of writes in each network
        #[arg(long, default_value_t = 50_000)]
        writes: u32,
    },
    /// Read from replicas whose connections stall, and check that no value is older than the reader
    /// allows
    Freshness {
        /// Number of reads
        #[arg(long, default_value_t = 10_000_000)]
        reads: u64,
    },
    /// Kill a master under load, promote its replica, let the old master return, and check that no
    /// acknowledged write is lost and that exactly the other ones are salvaged
    Failover {
        /// Number of failovers
        #[arg(long, default_value_t = 200)]
        rounds: u32,
        /// The seed that an earlier run printed
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Send random requests through a proxy of fake servers with faults, and of memcached servers
    /// that are killed, and compare the replies with a model. Move a million records to more
    /// servers
    Proxy {
        /// Number of requests to fake servers
        #[arg(long, default_value_t = 1_000_000)]
        requests: u64,
        /// Number of times that a memcached server is killed or stopped
        #[arg(long, default_value_t = 200)]
        rounds: u32,
        /// The seed that an earlier run printed, to repeat its requests
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Run the conformance suite on a cluster of Apache Cassandra over the wire. Then kill, pause
    /// and add nodes of a cluster with three copies while clients write, and check that no
    /// acknowledged write is lost
    Cassandra {
        /// Length of the faults in minutes
        #[arg(long, default_value_t = 5.0)]
        minutes: f64,
        /// Run only the faults
        #[arg(long)]
        faults: bool,
    },
    /// Build the packages as they are released, install each without a network, and compare the
    /// executables of two builds in different folders
    Packages {
        /// Only this one: image, debian, wheel, "same bytes" or "same executable"
        only: Option<String>,
    },
    /// Send sessions of random bytes to a running server
    Garbage {
        /// Number of sessions
        #[arg(long, default_value_t = 100_000)]
        sessions: u32,
    },
    /// Send requests of all kinds and faulty connections to running servers, and check every reply
    Soak {
        /// Length of the run in minutes
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// The seed that an earlier run printed, to repeat its requests
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Send random requests to memcached and to Todana, and compare the replies
    Differential {
        /// The memcached executable
        memcached: PathBuf,
        /// Number of requests
        #[arg(long, default_value_t = 1_000_000)]
        requests: u64,
        /// The seed that an earlier run printed, to repeat its requests
        #[arg(long)]
        seed: Option<u64>,
        /// The Todana executable; a new build if omitted
        #[arg(long, value_name = "FILE")]
        todana: Option<PathBuf>,
    },
}

/// Runs all proofs, the quick ones first. Uses the installed memcached.
pub(crate) fn all(report: &mut StepReport) {
    build(report);
    report.step("garbage", || garbage::run(100_000));
    report.step("differential", || differential::run_installed(1_000_000));
    report.step("soak", || soak::run(Duration::from_secs(600), None));
    report.step("crash", crash);
    report.step("replication", || replication(20_000));
    report.step("replication-native", || replication_native(100_000, None));
    report.step("replication-kills", || replication_kills(50_000));
    report.step("freshness", || freshness(10_000_000));
    report.step("failover", || failover(200, None));
    report.step("proxy", || proxy(1_000_000, 200, None));
    cassandra::prove(report, Duration::from_secs(300));
    packages::prove(report);
    sanitize::full(report);
    fuzz::run(report, None, 600);
}

impl Proof {
    /// Runs the proof. Paths are relative to the folder that the task was called from.
    pub(crate) fn run(self, report: &mut StepReport, called_from: &Path) {
        match self {
            Proof::Sanitize => sanitize::full(report),
            Proof::Fuzz { target, minutes } => fuzz::run(report, target.as_deref(), minutes * 60),
            Proof::Crash => report.step("crash", crash),
            Proof::Replication { rounds } => report.step("replication", || replication(rounds)),
            Proof::ReplicationNative { seeds, seed } => {
                report.step("replication-native", || replication_native(seeds, seed));
            }
            Proof::ReplicationKills { writes } => {
                report.step("replication-kills", || replication_kills(writes));
            }
            Proof::Freshness { reads } => report.step("freshness", || freshness(reads)),
            Proof::Failover { rounds, seed } => report.step("failover", || failover(rounds, seed)),
            Proof::Proxy { requests, rounds, seed } => {
                report.step("proxy", || proxy(requests, rounds, seed));
            }
            Proof::Cassandra { minutes, faults } => {
                report.only(faults.then_some("cassandra: faults"));
                build(report);
                cassandra::prove(report, Duration::from_secs_f64(minutes.clamp(0.5, 600.0) * 60.0));
            }
            Proof::Packages { only } => {
                report.only(only.map(|only| format!("packages: {only}")).as_deref());
                packages::prove(report);
            }
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

fn crash() -> StepOutcome {
    let mut words = vec!["test", "-p", "todana", "-p", "todana-engine", "--profile", PROFILE];
    // The simulations compute for an hour without optimisation.
    words.extend(["--config", "profile.fast.package.todana.opt-level=2"]);
    words.extend(["--config", "profile.fast.package.todana-engine.opt-level=2"]);
    let of_engine = ["disk_hash_crash", "disk_hash_recovery", "disk_hash_damage_crash"];
    let tests = ["crash", "crash_engines", "killed", "generations", "bits"].into_iter().chain(of_engine);
    tests.for_each(|test| words.extend(["--test", test]));
    words.extend(["--", "--nocapture"]);
    cargo(&words).env("TODANA_CRASH", "full").env("TODANA_KILLS", "200").run()
}

fn replication(rounds: u32) -> StepOutcome {
    let test = ["test", "-p", "todana-server", "--profile", PROFILE, "--test", "replication_rounds"];
    cargo(&[&test[..], &["--", "--nocapture"]].concat()).env("TODANA_ROUNDS", &rounds.to_string()).run()
}

fn replication_native(seeds: u64, seed: Option<u64>) -> StepOutcome {
    let test = ["test", "-p", "todana-server", "--profile", PROFILE, "--lib", "replica::native::simulation"];
    let mut run =
        cargo(&[&test[..], &["--", "--nocapture"]].concat()).env("TODANA_SEEDS", &seeds.to_string());
    if let Some(seed) = seed {
        run = run.env("TODANA_SEED", &seed.to_string());
    }
    run.run()
}

fn replication_kills(writes: u32) -> StepOutcome {
    let test = ["test", "-p", "todana-cli", "--profile", PROFILE, "--test", "native_replication"];
    cargo(&[&test[..], &["--", "killed"]].concat()).env("TODANA_WRITES", &writes.to_string()).run()
}

fn freshness(reads: u64) -> StepOutcome {
    let test = ["test", "-p", "todana-server", "--profile", PROFILE, "--test", "replica_freshness"];
    cargo(&[&test[..], &["--", "--nocapture"]].concat()).env("TODANA_READS", &reads.to_string()).run()
}

fn failover(rounds: u32, seed: Option<u64>) -> StepOutcome {
    let test = ["test", "-p", "todana-cli", "--profile", PROFILE, "--test", "failover", "failovers"];
    let mut run =
        cargo(&[&test[..], &["--", "--nocapture"]].concat()).env("TODANA_ROUNDS", &rounds.to_string());
    if let Some(seed) = seed {
        run = run.env("TODANA_SEED", &seed.to_string());
    }
    run.run()
}

fn proxy(requests: u64, rounds: u32, seed: Option<u64>) -> StepOutcome {
    let test = ["test", "-p", "todana-server", "--profile", PROFILE, "--test", "proxy_model"];
    let others = ["--test", "proxy_kills", "--test", "proxy_move", "--", "--nocapture"];
    let mut run = cargo(&[&test[..], &others].concat())
        .env("TODANA_PROXY_MOVED", "1000000")
        .env("TODANA_PROXY_REQUESTS", &requests.to_string())
        .env("TODANA_PROXY_KILLS", &rounds.to_string());
    if let Some(seed) = seed {
        run = run.env("TODANA_PROXY_SEED", &seed.to_string());
    }
    run.run()
}
