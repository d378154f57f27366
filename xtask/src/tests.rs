//! The tests of the workspace: built at once, then some programs side by side, as most of them wait
//! for servers and disks.

use crate::step::{Outcome, PROFILE, Report, cargo, patient};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Begin first, so that no long program is left for the end.
const LONG: [&str; 8] = [
    "bits",
    "conformance",
    "databases",
    "disk_hash_crash",
    "full_disk",
    "crash",
    "mistakes",
    "todana_engine",
];
/// As many of the slowest programs are named at the end.
const SLOWEST: usize = 10;

/// A program that cargo has built from tests.
struct Program {
    /// `PACKAGE TARGET`.
    name: String,
    executable: PathBuf,
    /// The folder of its package, where it runs.
    folder: PathBuf,
}

impl Program {
    fn is_long(&self) -> bool {
        self.name.split(' ').nth(1).is_some_and(|target| LONG.contains(&target))
    }

    /// Runs it; what it has printed, if it failed.
    fn run(&self) -> Option<String> {
        // Relative, a path would be looked for in the folder.
        let executable = std::path::absolute(&self.executable).unwrap_or_else(|_| self.executable.clone());
        let run = patient(executable, &[]).folder(&self.folder);
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

/// A program that has run, its time, and what it printed if it failed.
type Ran = (String, Duration, Option<String>);

pub(crate) fn run(report: &mut Report) {
    let mut programs = Vec::new();
    report.step("tests: build", || match build() {
        Ok(built) => {
            programs = built;
            Outcome::Passed
        }
        Err(outcome) => outcome,
    });
    report.step("tests: programs", || {
        if programs.is_empty() { Outcome::Failed("no test was built".into()) } else { run_all(programs) }
    });
    report.step("tests: documentation", || {
        cargo(&["test", "--workspace", "--doc", "--profile", PROFILE]).run()
    });
}

fn build() -> Result<Vec<Program>, Outcome> {
    let words = ["test", "--workspace", "--no-run", "--profile", PROFILE];
    let format = ["--message-format", "json-render-diagnostics"];
    let output = cargo(&[&words[..], &format].concat()).output_with_errors_shown();
    let output = output.map_err(|error| Outcome::Failed(format!("cannot run cargo: {error}")))?;
    if !output.status.success() {
        return Err(Outcome::Failed("the tests do not build".into()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(built_program).collect())
}

/// The program that a message of cargo's is about.
fn built_program(message: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_string_lossy();
    let name = format!("{package} {}", message["target"]["name"].as_str()?);
    Some(Program { name, executable: executable.into(), folder: folder.into() })
}

fn run_all(mut programs: Vec<Program>) -> Outcome {
    programs.sort_by_key(|program| !program.is_long());
    let at_once = std::thread::available_parallelism().map_or(2, usize::from);
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
                    println!("{}", told(&ran));
                    done.lock().expect("no thread panics").push(ran);
                }
            });
        }
    });
    conclude(done.into_inner().expect("no thread panics"))
}

/// The line, or the whole output, that reports the result of a program.
fn told((name, time, failure): &Ran) -> String {
    match failure {
        None => format!("{name:40} {:6.1} s", time.as_secs_f64()),
        Some(printed) => format!("\n--- {name} FAILED\n{printed}\n---"),
    }
}

fn conclude(mut done: Vec<Ran>) -> Outcome {
    done.sort_by_key(|(_, time, _)| std::cmp::Reverse(*time));
    println!("\nthe slowest:");
    for (name, time, _) in done.iter().take(SLOWEST) {
        println!("{name:40} {:6.1} s", time.as_secs_f64());
    }
    let failed = done.iter().filter(|(_, _, failure)| failure.is_some());
    let failed: Vec<&str> = failed.map(|(name, ..)| name.as_str()).collect();
    if failed.is_empty() { Outcome::Passed } else { Outcome::Failed(failed.join(", ")) }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn programs_of_tests_are_taken_from_the_messages_and_nothing_else() {
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
    fn a_program_that_fails_is_named() {
        let ran =
            |name: &str, failure: Option<&str>| (name.to_string(), Duration::ZERO, failure.map(String::from));
        assert!(matches!(conclude(vec![ran("a b", None)]), Outcome::Passed));
        let outcome = conclude(vec![ran("a b", None), ran("a c", Some("assertion failed"))]);
        assert!(matches!(outcome, Outcome::Failed(names) if names == "a c"));
    }
}
