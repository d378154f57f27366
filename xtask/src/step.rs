//! Steps of a task, and the table at the end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How a step ended.
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    /// Why it was skipped.
    Skipped(String),
}

/// The steps so far and their outcomes.
#[derive(Default)]
pub(crate) struct Report {
    only: Option<String>,
    /// The names by which `only` could have chosen.
    known: Vec<String>,
    steps: Vec<(String, Outcome, Duration)>,
}

impl Report {
    pub(crate) fn only(&mut self, only: Option<&str>) {
        self.only = only.map(String::from);
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == name || name.split(':').next() == Some(only))
    }

    /// Notes a name that may stand after `--only`.
    pub(crate) fn knows(&mut self, name: &str) {
        if name != "build" && !self.known.iter().any(|known| known == name) {
            self.known.push(name.to_string());
        }
    }

    /// Runs a step unless another one was asked for.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce() -> Outcome) {
        self.knows(name.split(':').next().unwrap_or(name));
        // `build` is called for whoever stands on it.
        if !self.wants(name) && name != "build" {
            return;
        }
        println!("\n=== {name}");
        let start = Instant::now();
        let outcome = run();
        match &outcome {
            Outcome::Failed(why) => println!("=== {name} FAILED: {why}"),
            Outcome::Skipped(why) => println!("=== {name} skipped: {why}"),
            Outcome::Passed => {}
        }
        self.steps.push((name.to_string(), outcome, start.elapsed()));
    }

    /// Prints the table.
    pub(crate) fn finish(self) -> ExitCode {
        println!();
        if let (Some(only), true) = (&self.only, self.steps.is_empty()) {
            println!("there is no step {only:?}; there are: {}", self.known.join(" "));
        }
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for (name, outcome, time) in &self.steps {
            let (word, why) = match outcome {
                Outcome::Passed => ("passed", ""),
                Outcome::Failed(why) => ("FAILED", why.as_str()),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
            };
            match outcome {
                Outcome::Passed => passed += 1,
                Outcome::Failed(_) => failed += 1,
                Outcome::Skipped(_) => skipped += 1,
            }
            println!("{name:28} {word:8} {:6.1} s  {why}", time.as_secs_f64());
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Many times what any program of the tests takes on a busy machine.
const LONGEST_SECONDS: &str = "900";

/// A command to run as a step.
pub(crate) struct Run(Command);

/// cargo, as it was called for this task.
pub(crate) fn cargo(words: &[&str]) -> Run {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), words)
}

/// cargo of the nightly toolchain.
pub(crate) fn nightly(words: &[&str]) -> Run {
    let mut run = program("cargo", &[&["+nightly"], words].concat());
    // The wrapper picks the toolchain; what this task was started with must not decide.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTDOC"] {
        run.0.env_remove(name);
    }
    run
}

pub(crate) fn program(name: impl AsRef<OsStr>, words: &[&str]) -> Run {
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
    Run(command)
}

/// A program that waits for others: after as many seconds it is ended, with all that it has
/// started, and has failed.
pub(crate) fn patient(name: impl AsRef<OsStr>, words: &[&str]) -> Run {
    let mut run = program("timeout", &["--kill-after=10", LONGEST_SECONDS]);
    run.0.arg(name).args(words);
    run
}

impl Run {
    pub(crate) fn env(mut self, name: &str, value: &str) -> Run {
        self.0.env(name, value);
        self
    }

    /// Looks for programs in this folder first.
    pub(crate) fn path_first(self, folder: &Path) -> Run {
        // The program may change its folder.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
        let path = std::env::var("PATH").unwrap_or_default();
        self.env("PATH", &format!("{}:{path}", folder.display()))
    }

    /// Runs it, its output shown.
    pub(crate) fn run(mut self) -> Outcome {
        match self.0.status() {
            Ok(status) if status.success() => Outcome::Passed,
            Ok(status) => Outcome::Failed(format!("{:?} ended with {status}", self.0.get_program())),
            Err(error) => Outcome::Failed(format!("cannot run {:?}: {error}", self.0.get_program())),
        }
    }

    /// Runs it in a folder.
    pub(crate) fn folder(mut self, folder: &Path) -> Run {
        self.0.current_dir(folder);
        self
    }

    /// Runs it; what it printed.
    pub(crate) fn output(mut self) -> std::io::Result<std::process::Output> {
        self.0.output()
    }

    /// Runs it; what it printed but for errors, which are shown.
    pub(crate) fn output_with_errors_shown(mut self) -> std::io::Result<std::process::Output> {
        self.0.stderr(Stdio::inherit()).output()
    }

    /// Runs it without output; whether it succeeded.
    pub(crate) fn succeeds(mut self) -> bool {
        self.0.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

/// The profile by which all steps build: optimised as the server is, so that the property tests get
/// through many cases.
pub(crate) const PROFILE: &str = "fast";

/// Builds the server and the C library as the tests do, of the same features, so that after them
/// there is nothing to do.
pub(crate) const SHARED_BUILD: [&str; 8] =
    ["build", "--workspace", "--profile", PROFILE, "--bin", "todana", "--test", "symbols"];

/// Where cargo puts what it builds by that profile.
pub(crate) fn built(name: &str) -> PathBuf {
    target_directory().join(PROFILE).join(name)
}

/// Where cargo builds.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// Installs Debian packages, where that can be done.
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
