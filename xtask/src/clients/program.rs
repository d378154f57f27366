//! The program of a client, run to its end.

use super::Protocol;
use crate::step::Outcome;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Far above what any takes, so that a client that waits for ever is a failure with a name.
const LIMIT: Duration = Duration::from_secs(120);

/// How a program shows that it has done all it should.
enum Proof {
    /// By its exit code.
    Code,
    /// By its last line, `N of N`, as well: an interpreter may end early and call that success.
    Count,
}

/// The program to run.
pub(super) struct Program {
    command: Command,
    proof: Proof,
}

impl Program {
    /// A test runner, which counts for itself.
    pub(super) fn runner(program: impl AsRef<Path>, words: &[&str]) -> Program {
        let mut command = Command::new(program.as_ref());
        command.args(words);
        Program { command, proof: Proof::Code }
    }

    /// A program that prints `N of N` when it is through.
    pub(super) fn new(program: impl AsRef<Path>, words: &[&str]) -> Program {
        Program { proof: Proof::Count, ..Program::runner(program, words) }
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> Program {
        self.command.env(name, value);
        self
    }

    /// Runs it, its output shown.
    pub(super) fn run(mut self, address: &str, protocol: Protocol) -> Outcome {
        self.command
            .env("TODANA_ADDRESS", address)
            .env("TODANA_PROTOCOL", protocol.name())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let name = self.command.get_program().display().to_string();
        let mut child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => return Outcome::Failed(format!("cannot run {name}: {error}")),
        };
        let Some(output) = child.stdout.take() else {
            return Outcome::Failed(format!("{name} has no output"));
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
            Err(error) => return Outcome::Failed(format!("{name} {error}")),
        };
        let last = last.join().unwrap_or_default();
        if !status.success() {
            return Outcome::Failed(format!("{name} ended with {status}"));
        }
        match self.proof {
            Proof::Count if !says_all(&last) => {
                Outcome::Failed(format!("{name} ended before its count, with {last:?}"))
            }
            Proof::Count | Proof::Code => Outcome::Passed,
        }
    }
}

/// Waits for the end, or makes one.
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

/// True of `N of N`.
fn says_all(line: &str) -> bool {
    match line.split_once(" of ") {
        Some((done, all)) => done == all && all.parse::<u32>().is_ok_and(|all| all > 0),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::says_all;

    #[test]
    fn only_a_full_count_is_a_proof() {
        assert!(says_all("11 of 11"));
        for line in ["10 of 11", "0 of 0", "11", "", "a of a", "11 of 11 "] {
            assert!(!says_all(line), "{line:?}");
        }
    }
}
