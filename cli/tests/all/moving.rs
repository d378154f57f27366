//! Runs the commands in docs/replacing-kyoto-tycoon.md and docs/moving-from-tokyo-tyrant.md as they
//! stand there, because users paste them. Also runs the commands that the refusals of Tokyo
//! Cabinet's files name.
//!
//! If TODANA_KTSERVER or TODANA_TTSERVER names a real server, the tools beside it are used too.
//! Otherwise Todana under the name of the server stands for the old server. Under the name
//! `ktserver` its databases are in memory, because only those have snapshots. Captured logs stand
//! for the old server's log, and scripts stand for Kyoto's tools.
//!
//! The files of Tokyo Cabinet are written by Debian's `tokyocabinet-bin`, if that is installed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KYOTO_PAGE: &str = include_str!("../../../docs/replacing-kyoto-tycoon.md");
const TYRANT_PAGE: &str = include_str!("../../../docs/moving-from-tokyo-tyrant.md");

/// Returns free ports below 32768, because Kyoto Tycoon's client reads larger ones as negative.
fn free_ports() -> [u16; 2] {
    let mut free = std::iter::repeat_with(|| fastrand::u16(20_000..32_000))
        .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    [free.next().unwrap(), free.next().unwrap()]
}

/// Returns the lines of all blocks as one script. It stops at the first line that fails, or that
/// does not print what the comment after it states.
fn script(page: &str) -> String {
    // Background processes end with the script.
    let mut script = String::from("set -euo pipefail\ntrap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\n");
    let (mut is_within, mut commands) = (false, 0);
    for (number, line) in page.lines().enumerate() {
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
    assert!(commands > 30, "the blocks are found");
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

/// The folders in which a page runs.
struct PageRun {
    folder: tempfile::TempDir,
    /// The programs that precede those of the system.
    path: Vec<PathBuf>,
}

impl PageRun {
    fn new() -> PageRun {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        symlink(env!("CARGO_BIN_EXE_todana"), bin.join("todana")).unwrap();
        PageRun { path: vec![bin], folder }
    }

    fn bin(&self) -> &Path {
        &self.path[0]
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Uses the tools beside the real server that the variable names. Returns false if it names
    /// none.
    fn uses_real(&mut self, variable: &str) -> bool {
        let real = std::env::var_os(variable).map(PathBuf::from);
        match &real {
            Some(real) => self.path.push(real.parent().unwrap().to_path_buf()),
            None => eprintln!("Todana stands in for the old server: {variable} names no server"),
        }
        real.is_some()
    }

    /// Runs a script of bash. Returns its output, and true if it succeeds.
    fn run(&self, script: &str) -> (String, bool) {
        let mut path = self.path.clone();
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "200", "bash", "-c", script]).current_dir(self.work()).stdin(Stdio::null());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TODANA_")) {
            command.env_remove(name);
        }
        let said = self.folder.path().join("said");
        let file = fs::File::create(&said).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let status = command.env("PATH", std::env::join_paths(path).unwrap()).status().unwrap();
        let said = fs::read(&said).unwrap();
        (String::from_utf8_lossy(&said).into_owned(), status.success())
    }

    /// Runs the script of a page, with free ports.
    fn run_page(&self, script: &str) {
        let [old, new] = free_ports();
        let script = script.replace("1978", &old.to_string()).replace("1979", &new.to_string());
        let (said, is_done) = self.run(&script);
        let log = |name: &str| fs::read_to_string(self.work().join(name)).unwrap_or_default();
        assert!(is_done, "{said}\nold: {}\nnew: {}", log("old/log"), log("new/log"));
    }
}

#[test]
fn every_step_of_kyoto_page_runs() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: the guide's blocks need curl");
        return;
    }
    let mut page = PageRun::new();
    let mut script = script(KYOTO_PAGE);
    if !page.uses_real("TODANA_KTSERVER") {
        script = stand_in(page.bin(), &script);
    }
    page.run_page(&script);
}

/// Files of each kind, as the commands of the page about Tokyo Tyrant name them.
const FILES: &str = "tchmgr create old.tch; tchmgr put old.tch japan tokyo\n\
    tcbmgr create old.tcb; tcbmgr put old.tcb japan tokyo; tcbmgr put -dd old.tcb japan osaka\n\
    tcfmgr create old.tcf 16; tcfmgr put old.tcf 3132 tokyo\n\
    tctmgr create old.tct; tctmgr put old.tct japan city tokyo age 500\n";
/// An update log of the first commands on the page about Tokyo Tyrant.
const LOG: &str = "1795450251872752\t1:0\tput\tC8 10 00 00 00 05 00 00 00 05 6A 61 70 61 6E 74 6F 6B 79 6F 00\n\
    1795450251872753\t1:0\taddint\tC8 60 00 00 00 06 00 00 00 29 76 69 73 69 74 73 00\n";

#[test]
fn every_step_of_tyrant_page_runs() {
    let mut page = PageRun::new();
    let mut script = script(TYRANT_PAGE);
    if page.uses_real("TODANA_TTSERVER") {
        if !has_cabinet_tools() {
            eprintln!("skipped: the real server's files need Debian's tokyocabinet-bin");
            return;
        }
    } else {
        for name in ["ttserver", "tcrmgr", "ttulmgr", "tchmgr", "tcbmgr", "tcfmgr", "tctmgr"] {
            symlink(env!("CARGO_BIN_EXE_todana"), page.bin().join(name)).unwrap();
        }
        fs::create_dir(page.work().join("captured")).unwrap();
        let (said, is_done) = page.run(&format!("ttulmgr import captured <<< '{}'", LOG.trim_end()));
        assert!(is_done, "{said}");
        // Todana runs no command for a copy. From any position in its log, its replicas get all
        // later values.
        script = script
            .replace("@old/copy.sh\n", "old/copy/casket.tch; echo 1 > old/copy/rts\n")
            .replace("load old/ulog", "load captured")
            .replace("export old/ulog", "export captured");
    }
    let (said, is_done) = page.run(&format!("set -e\n{FILES}"));
    assert!(is_done, "{said}");
    page.run_page(&script);
    let (lists, is_done) = page.run(
        "set -e\nfor tool in tchmgr tcbmgr tcfmgr tctmgr; do todana as $tool list -pv new.${tool:0:3}; done",
    );
    let expected = "japan\ttokyo\njapan\ttokyo\njapan\tosaka\n3132\ttokyo\njapan\tcity\ttokyo\tage\t500\n";
    assert_eq!((lists.as_str(), is_done), (expected, true));
}

/// Returns true if Tokyo Cabinet's own tools are installed.
fn has_cabinet_tools() -> bool {
    let output = Command::new("tctmgr").arg("version").output();
    output.is_ok_and(|output| !String::from_utf8_lossy(&output.stdout).contains("Todana"))
}

/// The command in the refusal of a table's file once failed, and that for numbered records stored
/// the record 3132 under the number 12.
#[test]
fn refusals_name_commands_that_load_files() {
    if !has_cabinet_tools() {
        eprintln!("skipped: Tokyo Cabinet's tools are not installed (Debian's tokyocabinet-bin)");
        return;
    }
    let page = PageRun::new();
    let numbers = "for n in $(seq 300); do printf '%s\\tvalue %s\\n' $n $n; done";
    let all = |script: &str| {
        let (said, is_done) = page.run(&format!("set -eo pipefail\n{script}"));
        assert!(is_done, "{script}\n{said}");
        said
    };
    all(&format!(
        "tchmgr create old.tch; {numbers} | tchmgr importtsv old.tch
         tchmgr put -sx old.tch 0009 0A0D00; tchmgr put old.tch '' empty; tchmgr put old.tch no ''
         tcbmgr create -td old.tcb; {numbers} | tcbmgr importtsv old.tcb; {numbers} | tcbmgr importtsv old.tcb
         tcbmgr put -sx -dd old.tcb 0009 0A; tcbmgr put -sx -dd old.tcb 0009 00; tcbmgr put old.tcb no ''
         tcfmgr create old.tcf 300 1000000; {numbers} | tcfmgr importtsv old.tcf
         tcfmgr put old.tcf 3132 $(printf '%300s' x | tr ' ' x); tcfmgr put old.tcf 3300 $'a\\tb\\n'
         tctmgr create \"old it's.tct\"; tctmgr setindex -it dec \"old it's.tct\" age
         for n in $(seq 300); do printf '%s\\tname\\tname %s\\tage\\t%s\\n' $n $n $n; done | tctmgr importtsv \"old it's.tct\"
         tctmgr put \"old it's.tct\" bare; tctmgr put \"old it's.tct\" $'tab\\t' $'a\\tb' $'c\\nd' none ''"
    ));
    for (tool, file) in
        [("tchmgr", "old.tch"), ("tcbmgr", "old.tcb"), ("tcfmgr", "old.tcf"), ("tctmgr", "old it's.tct")]
    {
        let ending = &file[file.len() - 3..];
        // Each way to use the file names the same command.
        let commands = [
            format!("todana as ttserver -port -1 \"{file}\""),
            format!("todana serve \"./{file}\""),
            format!("todana as {tool} list \"{file}\""),
            format!("todana load \"{file}\" --db ./{ending}.hash"),
            format!("todana get key -S \"./{file}\""),
        ]
        .map(|command| {
            let said = all(&format!("if {command}; then exit 1; fi"));
            let command = said.split('`').nth(1).unwrap_or_else(|| panic!("{command}: {said}"));
            command.replace("./", "").to_owned()
        });
        assert!(commands.iter().all(|command| *command == commands[0]), "{commands:?}");
        all(&commands[0]);
        let [ours, originals] = [("todana as ", format!("NEW.{ending}")), ("", file.to_owned())]
            .map(|(prefix, file)| all(&format!("{prefix}{tool} list -pv -px \"{file}\" | sort")));
        assert!(ours == originals, "{tool}: {ours}\n{originals}");
        let lines = if tool == "tcbmgr" { 603 } else { 302 };
        assert!(ours.lines().count() >= lines, "{tool}: {}", ours.lines().count());
    }
}
