//! Runs the tests of the workspace. They are built by one cargo command; then several test programs
//! run at a time, because most of them wait for servers and disks.

use crate::step::{
    FEATURES, PROFILE, StepOutcome, StepReport, cargo, install_debian, program, with_time_limit,
};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The programs that start first, because they take longest.
const LONG: [&str; 8] =
    ["all", "bits", "conformance", "databases", "disk_hash_crash", "full_disk", "crash", "todana_engine"];
/// The number of slowest programs that are printed at the end.
const SLOWEST: usize = 10;

/// A program that cargo built from tests.
struct TestProgram {
    /// `PACKAGE TARGET`.
    name: String,
    executable: PathBuf,
    /// The folder of its package, in which the program runs.
    folder: PathBuf,
}

impl TestProgram {
    fn is_long(&self) -> bool {
        self.name.split(' ').nth(1).is_some_and(|target| LONG.contains(&target))
    }

    /// Runs the program and returns its output if it failed.
    fn run(&self) -> Option<String> {
        // A relative path would be resolved in the program's folder.
        let executable = std::path::absolute(&self.executable).unwrap_or_else(|_| self.executable.clone());
        let run = with_time_limit(executable, &[]).folder(&self.folder);
        let run = run.env("CARGO_MANIFEST_DIR", &self.folder.display().to_string());
        let failure = match run.output() {
            Ok(output) if output.status.success() => return None,
            Ok(output) => format!(
                "{}{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
                output.status
            ),
            Err(error) => format!("cannot run {}: {error}", self.executable.display()),
        };
        Some(failure)
    }
}

/// The name of a program that has run, its time, and its output if it failed.
type FinishedProgram = (String, Duration, Option<String>);

pub(crate) fn run(report: &mut StepReport) {
    // `cli/tests/all/moving.rs` reads the files of these tools if they are installed.
    if !program("sh", &["-c", "command -v tctmgr"]).succeeds() {
        install_debian(&["tokyocabinet-bin"]);
    }
    // `server/tests/proxy_kills.rs` kills servers of it.
    if !program("sh", &["-c", "command -v memcached"]).succeeds() {
        install_debian(&["memcached"]);
    }
    let mut programs = Vec::new();
    report.step("tests: build", || match build() {
        Ok(built) => {
            programs = built;
            StepOutcome::Passed
        }
        Err(outcome) => outcome,
    });
    report.step("tests: programs", || {
        if programs.is_empty() {
            StepOutcome::Failed("tests: none was built".into())
        } else {
            run_all(programs)
        }
    });
    report.step("tests: documentation", || {
        let words = ["test", "--workspace", "--features", FEATURES, "--doc", "--profile", PROFILE];
        cargo(&words).run()
    });
}

fn build() -> Result<Vec<TestProgram>, StepOutcome> {
    let words = ["test", "--workspace", "--features", FEATURES, "--no-run", "--profile", PROFILE];
    let format = ["--message-format", "json-render-diagnostics"];
    let output = cargo(&[&words[..], &format].concat()).output_with_errors_shown();
    let output = output.map_err(|error| StepOutcome::Failed(format!("cannot run cargo: {error}")))?;
    if !output.status.success() {
        return Err(StepOutcome::Failed("tests: the build failed".into()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(built_program).collect())
}

/// Returns the program that a JSON message of cargo describes.
fn built_program(message: &str) -> Option<TestProgram> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_string_lossy();
    let name = format!("{package} {}", message["target"]["name"].as_str()?);
    Some(TestProgram { name, executable: executable.into(), folder: folder.into() })
}

fn run_all(mut programs: Vec<TestProgram>) -> StepOutcome {
    programs.sort_by_key(|program| !program.is_long());
    // One more than the processors, because most programs wait for servers, disks and clocks.
    let at_once = 1 + std::thread::available_parallelism().map_or(2, usize::from);
    println!("{} programs, {at_once} at a time", programs.len());
    let waiting = Mutex::new(VecDeque::from(programs));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no thread panics").pop_front();
                    let Some(program) = next else { break };
                    let start = Instant::now();
                    let failure = program.run();
                    let ran = (program.name, start.elapsed(), failure);
                    println!("{}", result_text(&ran));
                    done.lock().expect("no thread panics").push(ran);
                }
            });
        }
    });
    conclude(done.into_inner().expect("no thread panics"))
}

/// Returns a line for a program that passed, or the complete output of one that failed.
fn result_text((name, time, failure): &FinishedProgram) -> String {
    match failure {
        None => format!("{name:40} {:6.1} s", time.as_secs_f64()),
        Some(printed) => format!("\n--- {name} FAILED\n{printed}\n---"),
    }
}

fn conclude(mut done: Vec<FinishedProgram>) -> StepOutcome {
    done.sort_by_key(|(_, time, _)| std::cmp::Reverse(*time));
    println!("\nthe slowest:");
    for (name, time, _) in done.iter().take(SLOWEST) {
        println!("{name:40} {:6.1} s", time.as_secs_f64());
    }
    let failed = done.iter().filter(|(_, _, failure)| failure.is_some());
    let failed: Vec<&str> = failed.map(|(name, ..)| name.as_str()).collect();
    if failed.is_empty() { StepOutcome::Passed } else { StepOutcome::Failed(failed.join(", ")) }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn test_programs_are_read_from_cargo_messages() {
        let message = |executable: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/engine/Cargo.toml",
                "target":{{"name":"bits"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = built_program(&message(r#""/w/target/bits-1""#, true)).expect("a program");
        assert_eq!((program.name.as_str(), program.is_long()), ("engine bits", true));
        assert_eq!(
            (program.executable.as_path(), program.folder.as_path()),
            (Path::new("/w/target/bits-1"), Path::new("/w/engine"))
        );
        for other in [message("null", true), message(r#""/w/target/todana""#, false), "no message".into()] {
            assert!(built_program(&other).is_none(), "{other}");
        }
    }

    #[test]
    fn failed_program_is_named() {
        let ran =
            |name: &str, failure: Option<&str>| (name.to_string(), Duration::ZERO, failure.map(String::from));
        assert!(matches!(conclude(vec![ran("a b", None)]), StepOutcome::Passed));
        let outcome = conclude(vec![ran("a b", None), ran("a c", Some("assertion failed"))]);
        assert!(matches!(outcome, StepOutcome::Failed(names) if names == "a c"));
    }
}
