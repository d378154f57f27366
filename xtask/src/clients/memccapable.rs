//! libmemcached's own conformance tests.

use super::{ClientProtocol, TestServer};
use crate::step::{StepOutcome, install_debian, program};
use std::process::{Command, Stdio};

pub(super) fn run(server: &TestServer, protocol: ClientProtocol) -> Result<StepOutcome, StepOutcome> {
    let has = || program("sh", &["-c", "command -v memccapable"]).succeeds();
    let is_there = has() || (install_debian(&["libmemcached-tools"]) && has());
    if !is_there {
        return Err(StepOutcome::Skipped("memccapable: not installed (Debian: libmemcached-tools)".into()));
    }
    let Some((host, port)) = server.address.rsplit_once(':') else {
        return Err(StepOutcome::Failed(format!("{:?}: not an address", server.address)));
    };
    let half = match protocol {
        ClientProtocol::Text => "-a",
        ClientProtocol::Binary => "-b",
    };
    let output = Command::new("memccapable")
        .args([half, "-h", host, "-p", port])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| StepOutcome::Failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let passed = text.matches("[pass]").count();
    println!("memccapable: {passed} passed");
    // It reports failures in its text, not by its exit code.
    let is_good = output.status.success()
        && passed > 0
        && !text.contains("[FAIL]")
        && text.contains("All tests passed");
    Ok(if is_good { StepOutcome::Passed } else { StepOutcome::Failed("see above".into()) })
}
