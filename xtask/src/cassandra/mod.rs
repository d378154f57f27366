//! Checks and tests the databases on clusters, against real Apache Cassandra if it can be started
//! here (`local_cluster`). The other steps do not build this part, because the driver needs many
//! crates.

mod local_cluster;

use crate::step::{PROFILE, StepOutcome, StepReport, cargo};
use local_cluster::LocalCluster;

/// The packages with code for clusters, and their feature.
const PACKAGES: [&str; 8] = [
    "--package",
    "todana-remote",
    "--package",
    "todana-server",
    "--package",
    "todana-cli",
    "--features",
    "todana-server/cassandra,todana-cli/cassandra",
];

pub(crate) fn run(report: &mut StepReport) {
    report.step("cassandra: clippy", || {
        let end = ["--all-targets", "--profile", PROFILE, "--", "-D", "warnings"];
        cargo(&[&["clippy"], &PACKAGES[..], &end].concat()).run()
    });
    report.step("cassandra: units", || {
        cargo(&["test", "--package", "todana-remote", "--lib", "--profile", PROFILE]).run()
    });
    report.step("cassandra: cluster", || {
        // The tests use a cluster that runs already, if this variable names one.
        if let Ok(points) = std::env::var("TODANA_CASSANDRA") {
            return tests_on(&points);
        }
        match LocalCluster::start(1) {
            Ok(cluster) => tests_on(&cluster.contact_points()),
            Err(why) => StepOutcome::Skipped(why),
        }
    });
}

/// Runs the tests that need a cluster.
fn tests_on(contact_points: &str) -> StepOutcome {
    let tests = [
        "--test",
        "operations",
        "--test",
        "transcripts",
        "--test",
        "kyoto_transcripts",
        "--test",
        "cluster",
        "--test",
        "cluster_copy",
    ];
    let words = [&["test", "--profile", PROFILE], &PACKAGES[..], &tests].concat();
    cargo(&words).env("TODANA_CASSANDRA", contact_points).run()
}
