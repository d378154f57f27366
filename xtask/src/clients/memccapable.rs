//! libmemcached's own conformance tests.

use super::{Protocol, Server};
use crate::step::{Outcome, install_debian, program};
use std::process::{Command, Stdio};

pub(super) fn run(server: &Server, protocol: Protocol) -> Result<Outcome, Outcome> {
    let has = || program("sh", &["-c", "command -v memccapable"]).succeeds();
    let is_there = has() || (install_debian(&["libmemcached-tools"]) && has());
    if !is_there {
        return Err(Outcome::Skipped("memccapable (Debian: libmemcached-tools) is not installed".into()));
    }
    let Some((host, port)) = server.address.rsplit_once(':') else {
        return Err(Outcome::Failed(format!("odd address {:?}", server.address)));
    };
    let half = match protocol {
        Protocol::Text => "-a",
        Protocol::Binary => "-b",
    };
    let output = Command::new("memccapable")
        .args([half, "-h", host, "-p", port])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Outcome::Failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let passed = text.matches("[pass]").count();
    println!("memccapable: {passed} passed");
    // It reports failures in its text, not by its exit code.
    let is_good = output.status.success()
        && passed > 0
        && !text.contains("[FAIL]")
        && text.contains("All tests passed");
    Ok(if is_good { Outcome::Passed } else { Outcome::Failed("see above".into()) })
}
