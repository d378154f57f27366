//! Real clients against the real server.

use crate::step::{Outcome, Report, install_debian, program, target_directory};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SERVER: &str = "fast/todana";
pub(crate) const PYTHON: &str = ".venv/bin/python";

/// A server on a port of the system's choice; stopped when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Result<Server, String> {
        let mut child = Command::new(target_directory().join(SERVER))
            .args(["serve", "--port", "-1"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        // Made first, so that the server is stopped whatever its banner says.
        let mut server = Server { child, address: String::new() };
        for line in BufReader::new(output).lines().take(3) {
            let line = line.map_err(|error| error.to_string())?;
            if let Some(address) = line.strip_prefix("listening on ") {
                server.address = address.to_string();
                return Ok(server);
            }
        }
        Err("the server did not say where it listens".into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True while the process runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn run(report: &mut Report) {
    report.step("clients: pymemcache", || python("pymemcache", "tests/clients/pymemcache_test.py", &[]));
    report.step("clients: pylibmc", || {
        python(
            "pylibmc",
            "tests/clients/pylibmc_test.py",
            &["libmemcached-dev", "zlib1g-dev", "gcc", "libc6-dev"],
        )
    });
    report.step("clients: memccapable", memccapable);
}

/// Installs a client into the project's own environment and runs its tests.
fn python(package: &str, file: &str, headers: &[&str]) -> Outcome {
    if !Path::new(PYTHON).exists() {
        let made = || program("python3", &["-m", "venv", ".venv"]).succeeds();
        let is_made = made() || (install_debian(&["python3", "python3-venv"]) && made());
        if !is_made {
            return Outcome::Skipped("there is no python3 with venv".into());
        }
    }
    let install = |packages: &[&str]| {
        program(
            PYTHON,
            &[&["-m", "pip", "install", "--quiet", "--disable-pip-version-check"], packages].concat(),
        )
        .succeeds()
    };
    let has = || program(PYTHON, &["-c", &format!("import {package}, pytest")]).succeeds();
    if !has() && !install(&["pytest", package]) {
        let with_headers = !headers.is_empty() && install_debian(headers) && install(&["pytest", package]);
        if !with_headers {
            return Outcome::Skipped(format!("{package} could not be installed with pip"));
        }
    }
    let server = match Server::start(&["-I", "2m"]) {
        Ok(server) => server,
        Err(error) => return Outcome::Failed(error),
    };
    let cache = ["-p", "no:cacheprovider"];
    program(PYTHON, &[&["-m", "pytest", "-q"], &cache[..], &[file]].concat())
        .env("TODANA_ADDRESS", &server.address)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run()
}

/// libmemcached's own conformance tests, the ASCII half.
fn memccapable() -> Outcome {
    let has = || program("sh", &["-c", "command -v memccapable"]).succeeds();
    let is_there = has() || (install_debian(&["libmemcached-tools"]) && has());
    if !is_there {
        return Outcome::Skipped("memccapable (Debian: libmemcached-tools) is not installed".into());
    }
    let server = match Server::start(&[]) {
        Ok(server) => server,
        Err(error) => return Outcome::Failed(error),
    };
    let Some((host, port)) = server.address.rsplit_once(':') else {
        return Outcome::Failed(format!("odd address {:?}", server.address));
    };
    // It reports failures in its text, not by its exit code.
    let output =
        Command::new("memccapable").args(["-a", "-h", host, "-p", port]).stdin(Stdio::null()).output();
    match output {
        Err(error) => Outcome::Failed(error.to_string()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            println!("{text}");
            let passed = text.matches("[pass]").count();
            println!("memccapable: {passed} passed");
            if output.status.success()
                && passed > 0
                && !text.contains("[FAIL]")
                && text.contains("All tests passed")
            {
                Outcome::Passed
            } else {
                Outcome::Failed("see above".into())
            }
        }
    }
}
