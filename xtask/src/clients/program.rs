//! The program of a client: runs it and checks that it completed.

use super::ClientProtocol;
use crate::step::StepOutcome;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A client that runs longer fails by name. No client needs nearly as long.
const LIMIT: Duration = Duration::from_secs(120);

/// How a program shows that it ran all of its checks.
enum CompletionProof {
    /// The exit code is 0.
    Code,
    /// The exit code is 0 and the last line is `N of N`, because an interpreter may end early with
    /// code 0.
    Count,
}

/// The program to run.
pub(super) struct ClientProgram {
    command: Command,
    proof: CompletionProof,
}

impl ClientProgram {
    /// A test runner, which counts its tests itself.
    pub(super) fn runner(program: impl AsRef<Path>, words: &[&str]) -> ClientProgram {
        let mut command = Command::new(program.as_ref());
        command.args(words);
        ClientProgram { command, proof: CompletionProof::Code }
    }

    /// A program that prints `N of N` at its end.
    pub(super) fn new(program: impl AsRef<Path>, words: &[&str]) -> ClientProgram {
        ClientProgram { proof: CompletionProof::Count, ..ClientProgram::runner(program, words) }
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> ClientProgram {
        self.command.env(name, value);
        self
    }

    /// Runs the program and shows its output.
    pub(super) fn run(mut self, address: &str, protocol: ClientProtocol) -> StepOutcome {
        self.command
            .env("TODANA_ADDRESS", address)
            .env("TODANA_PROTOCOL", protocol.name())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let name = self.command.get_program().display().to_string();
        let mut child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => return StepOutcome::Failed(format!("{name}: cannot run: {error}")),
        };
        let Some(output) = child.stdout.take() else {
            return StepOutcome::Failed(format!("{name}: has no output"));
        };
        let last = thread::spawn(move || {
            let mut last = String::new();
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                println!("{line}");
                last = line;
            }
            last
        });
        let status = match wait(child) {
            Ok(status) => status,
            Err(error) => return StepOutcome::Failed(format!("{name} {error}")),
        };
        let last = last.join().unwrap_or_default();
        if !status.success() {
            return StepOutcome::Failed(format!("{name}: ended with {status}"));
        }
        match self.proof {
            CompletionProof::Count if !is_full_count(&last) => {
                StepOutcome::Failed(format!("{name}: last line is {last:?}, not a complete count"))
            }
            CompletionProof::Count | CompletionProof::Code => StepOutcome::Passed,
        }
    }
}

/// Waits until the program ends, and kills it after `LIMIT`.
fn wait(mut child: Child) -> Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < LIMIT => thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("was still running after {} s", LIMIT.as_secs()));
            }
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

/// Returns true if the line is `N of N` with N above 0.
fn is_full_count(line: &str) -> bool {
    match line.split_once(" of ") {
        Some((done, all)) => done == all && all.parse::<u32>().is_ok_and(|all| all > 0),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_full_count;

    #[test]
    fn only_a_full_count_proves_completion() {
        assert!(is_full_count("11 of 11"));
        for line in ["10 of 11", "0 of 0", "11", "", "a of a", "11 of 11 "] {
            assert!(!is_full_count(line), "{line:?}");
        }
    }
}
