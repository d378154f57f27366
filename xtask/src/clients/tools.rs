//! Administration tools for memcached: `memcached-tool`, and libmemcached's `memc...`, both from
//! Debian's packages.

use super::TestServer;
use crate::step::{StepOutcome, install_debian, program, target_directory};
use std::path::Path;
use std::process::{Command, Stdio};

const MEMCACHED_TOOL: &str = "/usr/share/memcached/scripts/memcached-tool";

/// A Perl script that stores the record for `memcached-tool` with a fixed expiry.
const SET: &str = r#"use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => shift) or die;
    print $s "set alpha 3 2000000000 11\r\nhello world\r\n"; print scalar <$s>"#;

/// The expected output of a tool.
enum ExpectedOutput {
    /// Exactly this text.
    Text(&'static str),
    /// These pieces in this order, with any text between them.
    Pieces(&'static [&'static str]),
}

use ExpectedOutput::{Pieces, Text};

/// A call of one of libmemcached's tools: its name, arguments, exit code, and output.
type ToolCall = (&'static str, &'static [&'static str], i32, ExpectedOutput);

/// The calls in their order; each depends on the records that the calls before it stored.
const LIBMEMCACHED: &[ToolCall] = &[
    ("memcping", &[], 0, Text("")),
    ("memccp", &["--flag=3", "--expire=1000", "alpha", "beta"], 0, Text("")),
    ("memccp", &["--add", "alpha"], 1, Text("")),
    ("memccat", &["alpha", "beta"], 0, Text("hello world\nsecond\n")),
    ("memccat", &["--flags", "alpha"], 0, Text("3\nhello world\n")),
    ("memccat", &["missing"], 1, Text("")),
    ("memcexist", &["alpha"], 0, Text("")),
    ("memcexist", &["missing"], 1, Text("")),
    ("memctouch", &["--expire=2000", "alpha"], 0, Text("")),
    ("memctouch", &["missing"], 1, Text("")),
    ("memcrm", &["beta"], 0, Text("")),
    ("memcrm", &["beta"], 1, Text("")),
    ("memcdump", &[], 0, Text("alpha\n")),
    (
        "memcstat",
        &[],
        0,
        Pieces(&[
            "\tpid: ",
            "\tversion: 1.6.45\n",
            "\tcmd_set: 5\n",
            "\tdelete_hits: 1\n",
            "\tcurr_items: 1\n",
        ]),
    ),
    ("memcstat", &["items"], 0, Pieces(&["\titems:1:number: 1\n", "\titems:1:evicted: 0\n"])),
    (
        "memcstat",
        &["slabs"],
        0,
        Pieces(&["\t1:chunk_size: 96\n", "\t1:used_chunks: 1\n", "\t1:cmd_set: 5\n", "\tactive_slabs: 1\n"]),
    ),
    ("memcstat", &["settings"], 0, Pieces(&["\tmaxbytes: 67108864\n", "\titem_size_max: 2097152\n"])),
    (
        "memcslap",
        &["--concurrency=4", "--execute-number=250", "--initial-load=100", "--test=get"],
        0,
        Pieces(&["Time to get            1000 keys by    4 threads"]),
    ),
    (
        "memcslap",
        &["--concurrency=2", "--execute-number=250", "--test=set"],
        0,
        Pieces(&["Time to set             500 keys by    2 threads"]),
    ),
    (
        "memcaslap",
        &["--threads=1", "--concurrency=4", "--execute_number=2000"],
        0,
        Pieces(&["cmd_get: 1800\n", "cmd_set: 200\n", "get_misses: 0\n", "Ops: 2000"]),
    ),
];

/// The modes of `memcached-tool`, on a server with one record.
const MODES: &[(&str, ExpectedOutput)] = &[
    (
        "display",
        Pieces(&[
            "  #  Item_Size  Max_age   Pages   Count   Full?  Evicted Evict_Time OOM\n",
            // The age in seconds depends on the speed of the machine.
            "  1      96B         ",
            "s       1       1      no        0        0    0\n",
        ]),
    ),
    (
        "stats",
        Pieces(&[
            "curr_items             1\r\n",
            "limit_maxbytes      67108864\r\n",
            "version        1.6.45\r\n",
        ]),
    ),
    (
        "settings",
        Pieces(&["dump_enabled         yes\r\n", "maxbytes    67108864\r\n", "track_sizes         yes\r\n"]),
    ),
    ("sizes", Pieces(&["Size       Count\n", "                      96           1\r\n"])),
    ("keys", Pieces(&["key=alpha exp=2000000000 la=", " cls=1 size=79 flags=3 \n"])),
    ("dump", Text("add alpha 3 2000000000 11\r\nhello world\r\n")),
];

pub(super) fn run_libmemcached(server: &TestServer) -> Result<StepOutcome, StepOutcome> {
    let has = || program("sh", &["-c", "command -v memcstat && command -v memcaslap"]).succeeds();
    require(has, "libmemcached-tools")?;
    let folder = target_directory().join("tools");
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text);
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| write("alpha", "hello world"))
        .and_then(|()| write("beta", "second"));
    written.map_err(|error| StepOutcome::Failed(format!("files for memccp: cannot write: {error}")))?;
    for (tool, words, code, expected) in LIBMEMCACHED {
        let mut all = vec![format!("--servers={}", server.address)];
        all.extend(words.iter().map(ToString::to_string));
        call(tool, &all, &folder, *code, expected)?;
    }
    Ok(StepOutcome::Passed)
}

pub(super) fn run_memcached_tool(server: &TestServer) -> Result<StepOutcome, StepOutcome> {
    let has = || program("perl", &["-c", MEMCACHED_TOOL]).succeeds();
    require(has, "memcached")?;
    let here = Path::new(".");
    call("perl", &["-e".into(), SET.into(), server.address.clone()], here, 0, &Text("STORED\r\n"))?;
    for (mode, expected) in MODES {
        call("perl", &[MEMCACHED_TOOL.into(), server.address.clone(), mode.to_string()], here, 0, expected)?;
    }
    Ok(StepOutcome::Passed)
}

fn require(has: impl Fn() -> bool, package: &str) -> Result<(), StepOutcome> {
    if has() || (install_debian(&[package]) && has()) {
        Ok(())
    } else {
        Err(StepOutcome::Skipped(format!("{package}: not installed (a Debian package)")))
    }
}

/// Runs a tool and compares its exit code and output with those expected.
fn call(
    tool: &str,
    words: &[String],
    folder: &Path,
    code: i32,
    expected: &ExpectedOutput,
) -> Result<(), StepOutcome> {
    let failed = |what: String| StepOutcome::Failed(format!("{tool} {}: {what}", words.join(" ")));
    // A program that hangs fails with its name.
    let output = Command::new("timeout")
        .args(["60", tool])
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("cannot run: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{tool} {}", words.join(" "));
    if output.status.code() != Some(code) {
        println!("{text}");
        return Err(failed(format!("ended with {}, not {code}", output.status)));
    }
    if matches_output(&text, expected) {
        return Ok(());
    }
    println!("{}", text.escape_debug());
    match expected {
        Text(exact) => Err(failed(format!("{exact:?} is expected"))),
        Pieces(pieces) => Err(failed(format!("expected {pieces:?} in this order"))),
    }
}

fn matches_output(text: &str, expected: &ExpectedOutput) -> bool {
    match expected {
        Text(exact) => text == *exact,
        Pieces(pieces) => {
            let rest = |text: &'_ str, piece: &str| text.find(piece).map(|at| at + piece.len());
            let mut at = 0;
            pieces.iter().all(|piece| rest(&text[at..], piece).map(|len| at += len).is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Pieces, Text, matches_output};

    #[test]
    fn pieces_must_come_in_their_order() {
        assert!(matches_output("a b c", &Pieces(&["a", "c"])) && matches_output("a", &Text("a")));
        for expected in [Pieces(&["c", "a"]), Pieces(&["a", "a"]), Pieces(&["d"]), Text("a b")] {
            assert!(!matches_output("a b c", &expected));
        }
    }
}
