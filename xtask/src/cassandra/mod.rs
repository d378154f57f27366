//! Tests databases on clusters, with real Apache Cassandra if it can be started here
//! (`local_cluster`).

mod faults;
mod local_cluster;

use crate::step::{FEATURES, PROFILE, StepOutcome, StepReport, cargo};
use local_cluster::LocalCluster;
use std::time::Duration;

pub(crate) fn run(report: &mut StepReport) {
    report.step("cassandra", || {
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

/// Runs the conformance suite over the wire, and then kills, pauses and adds nodes under load.
pub(crate) fn prove(report: &mut StepReport, length: Duration) {
    report.step("cassandra: conformance", || match LocalCluster::start(1) {
        Ok(cluster) => {
            let words = ["test", "-p", "todana-server", "--features", "cassandra", "--profile", PROFILE];
            let test = ["--test", "cluster_conformance", "--", "--ignored", "--nocapture"];
            cargo(&[&words[..], &test].concat())
                .env("TODANA_CASSANDRA", &cluster.contact_points())
                .env("TODANA_CASES", "1")
                .run()
        }
        Err(why) => StepOutcome::Skipped(why),
    });
    report.step("cassandra: faults", || match LocalCluster::start(3) {
        Ok(mut cluster) => match faults::run(&mut cluster, length) {
            Ok(()) => StepOutcome::Passed,
            Err(problems) => StepOutcome::Failed(problems),
        },
        Err(why) => StepOutcome::Skipped(why),
    });
}

/// Runs the tests that need a cluster. They are those of `tests` again, so they are built already.
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
    let words = [&["test", "--workspace", "--features", FEATURES, "--profile", PROFILE], &tests[..]].concat();
    cargo(&words).env("TODANA_CASSANDRA", contact_points).run()
}
