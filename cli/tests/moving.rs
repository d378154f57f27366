//! Runs the commands in docs/replacing-kyoto-tycoon.md as they stand there, because users paste
//! them.
//!
//! If TODANA_KTSERVER names a real ktserver, the tools beside it are used too. Otherwise Todana
//! under the name `ktserver` stands for the old server, with databases in memory, because only
//! those have snapshots. A captured log stands for the old server's log, and scripts stand for
//! Kyoto's tools.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PAGE: &str = include_str!("../../docs/replacing-kyoto-tycoon.md");

/// Returns free ports below 32768, because Kyoto Tycoon's client reads larger ones as negative.
fn free_ports() -> [u16; 2] {
    let mut free = std::iter::repeat_with(|| fastrand::u16(20_000..32_000))
        .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    [free.next().unwrap(), free.next().unwrap()]
}

/// Returns the lines of all blocks as one script. It stops at the first line that fails, or that
/// does not print what the comment after it states.
fn script() -> String {
    // Background processes end with the script.
    let mut script = String::from("set -euo pipefail\ntrap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\n");
    let (mut is_within, mut commands) = (false, 0);
    for (number, line) in PAGE.lines().enumerate() {
        if line.starts_with("```") {
            is_within = line == "```sh";
            continue;
        }
        if !is_within {
            continue;
        }
        commands += 1;
        let (command, comment) = line.split_once("  #").unwrap_or((line, ""));
        let command = command.trim_end();
        let place = format!("line {}", number + 1);
        script.push_str(&format!("echo '{place}: {}'\n", command.replace('\'', "'\\''")));
        match comment.trim().strip_prefix("prints: ") {
            Some(promise) => script.push_str(&format!(
                "printed=$({command}); echo \"$printed\"\n\
                 case \"$printed\" in *'{promise}'*) ;; *) echo '{place} does not print {promise}'; exit 1 ;; esac\n"
            )),
            None => script.push_str(&format!("{command}\n")),
        }
    }
    assert!(commands > 40, "the blocks are found");
    script
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Creates scripts that stand for Kyoto Tycoon's programs.
fn stand_in(bin: &Path, script: &str) -> String {
    fs::create_dir(bin.join("as")).unwrap();
    symlink(env!("CARGO_BIN_EXE_todana"), bin.join("as/ktserver")).unwrap();
    program(
        &bin.join("ktserver"),
        "#!/bin/bash\nwords=()\nfor word; do case $word in old/*.kct) word=% ;; esac; words+=(\"$word\"); done\n\
         exec \"${0%/*}/as/ktserver\" \"${words[@]}\"\n",
    );
    // `dump DATABASE FILE`: writes the data that the old server has left.
    program(
        &bin.join("kcpolymgr"),
        "#!/bin/bash -e\ntodana load old/bgs/00000000.ktss --db ./old/left.tree\ntodana dump --format kcss \"$3\" --db ./old/left.tree\n",
    );
    // `list -host HOST -port PORT -pv -px -pt`: keys of letters only.
    program(
        &bin.join("ktremotemgr"),
        "#!/bin/bash -e\nat=http://$3:$5/rpc\nhex() { od -An -v -tx1 | tr -d '\\n'; }\n\
         for key in $(curl -sf \"$at/match_prefix?prefix=\" | sed -n 's/^_\\([a-z]*\\)\\t.*/\\1/p'); do\n\
         record=$(curl -sf \"$at/get?key=$key\")\n\
         value=$(sed -n 's/^value\\t//p' <<< \"$record\"); xt=$(sed -n 's/^xt\\t//p' <<< \"$record\")\n\
         printf '%s\\t%s\\t%s\\n' \"$(printf %s \"$key\" | hex)\" \"$(printf %s \"$value\" | hex)\" \"${xt:-9223372036854775807}\"\n\
         done\n",
    );
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kyoto/ulog");
    let log = log.to_str().unwrap();
    // No file of the original exists here. The last snapshot has the same records.
    script
        .replace("todana load old/casket.kct", "todana load old/bgs/00000000.ktss")
        .replace("todana log old/ulog", &format!("todana log {log}"))
        .replace("load old/ulog", &format!("load {log}"))
}

#[test]
fn every_step_of_the_guide_runs() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: the guide's blocks need curl");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (bin, work) = (folder.path().join("bin"), folder.path().join("work"));
    fs::create_dir(&bin).unwrap();
    fs::create_dir(&work).unwrap();
    symlink(env!("CARGO_BIN_EXE_todana"), bin.join("todana")).unwrap();
    let mut path = vec![bin.clone()];
    let mut script = script();
    match std::env::var_os("TODANA_KTSERVER").map(PathBuf::from) {
        Some(real) => path.push(real.parent().unwrap().to_path_buf()),
        None => {
            eprintln!("Todana stands in for the old server: TODANA_KTSERVER names no ktserver");
            script = stand_in(&bin, &script);
        }
    }
    let [old, new] = free_ports();
    let script = script.replace("1978", &old.to_string()).replace("1979", &new.to_string());
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "200", "bash", "-c", &script]).current_dir(&work).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TODANA_")) {
        command.env_remove(name);
    }
    let said = fs::File::create(folder.path().join("said")).unwrap();
    command.stdout(said.try_clone().unwrap()).stderr(said).env("PATH", std::env::join_paths(path).unwrap());
    let status = command.status().unwrap();
    let said = fs::read_to_string(folder.path().join("said")).unwrap();
    let log = |name: &str| fs::read_to_string(work.join(name)).unwrap_or_default();
    assert!(status.success(), "{said}\nold: {}\nnew: {}", log("old/log"), log("new/log"));
}
