//! The steps of a task, their outcomes, and the table of them at the end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The outcome of a step.
pub(crate) enum StepOutcome {
    Passed,
    Failed(String),
    /// The step was skipped, for this reason.
    Skipped(String),
}

/// The steps that have run and their outcomes.
#[derive(Default)]
pub(crate) struct StepReport {
    only: Option<String>,
    /// The names that `--only` accepts.
    known: Vec<String>,
    steps: Vec<(String, StepOutcome, Duration)>,
}

impl StepReport {
    pub(crate) fn only(&mut self, only: Option<&str>) {
        self.only = only.map(String::from);
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == name || name.split(':').next() == Some(only))
    }

    /// Records a name that `--only` accepts.
    pub(crate) fn add_name(&mut self, name: &str) {
        if name != "build" && !self.known.iter().any(|known| known == name) {
            self.known.push(name.to_string());
        }
    }

    /// Runs a step unless `--only` names another.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce() -> StepOutcome) {
        self.add_name(name.split(':').next().unwrap_or(name));
        // `build` always runs: the caller calls it only if a chosen step needs it.
        if !self.wants(name) && name != "build" {
            return;
        }
        println!("\n=== {name}");
        let start = Instant::now();
        let outcome = run();
        match &outcome {
            StepOutcome::Failed(why) => println!("=== {name} FAILED: {why}"),
            StepOutcome::Skipped(why) => println!("=== {name} skipped: {why}"),
            StepOutcome::Passed => {}
        }
        self.steps.push((name.to_string(), outcome, start.elapsed()));
    }

    /// Prints the table of all steps and returns the exit code.
    pub(crate) fn finish(self) -> ExitCode {
        println!();
        if let (Some(only), true) = (&self.only, self.steps.is_empty()) {
            println!("{only:?}: no such step; the steps are: {}", self.known.join(" "));
        }
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for (name, outcome, time) in &self.steps {
            let (word, why) = match outcome {
                StepOutcome::Passed => ("passed", ""),
                StepOutcome::Failed(why) => ("FAILED", why.as_str()),
                StepOutcome::Skipped(why) => ("skipped", why.as_str()),
            };
            match outcome {
                StepOutcome::Passed => passed += 1,
                StepOutcome::Failed(_) => failed += 1,
                StepOutcome::Skipped(_) => skipped += 1,
            }
            println!("{name:28} {word:8} {:6.1} s  {why}", time.as_secs_f64());
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The limit for a program of the tests: many times what any needs on a busy machine.
const TIME_LIMIT_SECONDS: &str = "900";

/// A command to run as a step.
pub(crate) struct StepCommand(Command);

/// Returns a command of the cargo that runs this task.
pub(crate) fn cargo(words: &[&str]) -> StepCommand {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), words)
}

/// Returns a command of the nightly toolchain's cargo.
pub(crate) fn nightly(words: &[&str]) -> StepCommand {
    let mut run = program("cargo", &[&["+nightly"], words].concat());
    // rustup's wrapper must choose the toolchain, not the variables that cargo set for this task.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTDOC"] {
        run.0.env_remove(name);
    }
    run
}

pub(crate) fn program(name: impl AsRef<OsStr>, words: &[&str]) -> StepCommand {
    let mut command = Command::new(name);
    command.args(words).stdin(Stdio::null());
    // Cargo sets these variables for this task. Build scripts that read them would run again
    // whenever they appear or disappear.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(&name);
        }
    }
    StepCommand(command)
}

/// Returns a command that fails after `TIME_LIMIT_SECONDS`: the program and all its children are
/// killed then. Meant for programs that wait for others.
pub(crate) fn with_time_limit(name: impl AsRef<OsStr>, words: &[&str]) -> StepCommand {
    let mut run = program("timeout", &["--kill-after=10", TIME_LIMIT_SECONDS]);
    run.0.arg(name).args(words);
    run
}

impl StepCommand {
    pub(crate) fn env(mut self, name: &str, value: &str) -> StepCommand {
        self.0.env(name, value);
        self
    }

    /// Searches this folder first for programs.
    pub(crate) fn path_first(self, folder: &Path) -> StepCommand {
        // An absolute path stays valid if the program changes its folder.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
        let path = std::env::var("PATH").unwrap_or_default();
        self.env("PATH", &format!("{}:{path}", folder.display()))
    }

    /// Runs the command and shows its output.
    pub(crate) fn run(mut self) -> StepOutcome {
        match self.0.status() {
            Ok(status) if status.success() => StepOutcome::Passed,
            Ok(status) => StepOutcome::Failed(format!("{:?} ended with {status}", self.0.get_program())),
            Err(error) => StepOutcome::Failed(format!("cannot run {:?}: {error}", self.0.get_program())),
        }
    }

    /// Sets the folder in which the command runs.
    pub(crate) fn folder(mut self, folder: &Path) -> StepCommand {
        self.0.current_dir(folder);
        self
    }

    /// Runs the command and returns its output.
    pub(crate) fn output(mut self) -> std::io::Result<std::process::Output> {
        self.0.output()
    }

    /// Runs the command, returns its standard output, and shows its standard error.
    pub(crate) fn output_with_errors_shown(mut self) -> std::io::Result<std::process::Output> {
        self.0.stderr(Stdio::inherit()).output()
    }

    /// Runs the command without showing output. Returns true if it succeeded.
    pub(crate) fn succeeds(mut self) -> bool {
        self.0.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

/// The profile with which all steps build. It is optimised, so that the property tests run many
/// cases.
pub(crate) const PROFILE: &str = "fast";

/// The features that tests and release builds switch on.
pub(crate) const FEATURES: &str = "todana-server/cassandra,todana-cli/cassandra";

/// The arguments that build the server and the C library with the same features as the tests, so
/// that the build is already up to date after the tests.
pub(crate) const SHARED_BUILD: [&str; 10] = [
    "build",
    "--workspace",
    "--features",
    FEATURES,
    "--profile",
    PROFILE,
    "--bin",
    "todana",
    "--test",
    "symbols",
];

/// Returns the path of a file that cargo builds with that profile.
pub(crate) fn built(name: &str) -> PathBuf {
    target_directory().join(PROFILE).join(name)
}

/// Returns cargo's target directory.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// Installs Debian packages if this process may. Returns true on success.
pub(crate) fn install_debian(packages: &[&str]) -> bool {
    let is_root = program("sh", &["-c", "[ $(id -u) = 0 ]"]).succeeds();
    if !is_root {
        return false;
    }
    let install = || {
        program("apt-get", &[&["install", "-y", "--no-install-recommends"], packages].concat())
            .env("DEBIAN_FRONTEND", "noninteractive")
            .succeeds()
    };
    // A fresh machine has no package lists yet.
    install() || (program("apt-get", &["update"]).succeeds() && install())
}
