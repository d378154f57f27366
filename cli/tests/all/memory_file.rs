//! Records that survive a restart under the name `memcached`, by `-e` or by the environment.

use crate::memcached_running;

use memcached_running::{MemcachedFolder, MemcachedServer};
use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

fn start(place: &MemcachedFolder, words: &[&str]) -> MemcachedServer {
    place.start(place.command(words))
}

/// memcached 1.6.18 keeps the same records, but only if it is stopped gracefully.
#[test]
fn records_survive_any_stop_with_all_attributes() {
    let place = MemcachedFolder::new();
    // A file of memcached stays unchanged.
    fs::write(place.path("memory"), "memcached's").unwrap();
    let memory = place.path("memory").display().to_string();
    let first = start(&place, &["-e", &memory]);
    let lines = "set plain 0 0 5\r\nhello\r\nset flags 77 0 1\r\nf\r\nset dated 0 2000000000 1\r\nd\r\n\
                 set gone 0 0 1\r\nx\r\ndelete gone\r\nset num 0 0 2\r\n41\r\nincr num 1\r\nset short 0 -1 1\r\ns\r\n";
    assert_eq!(first.ask(lines).matches("STORED").count(), 6);
    let versions = first.ask("gets plain flags\r\n");
    let mut before = None;
    let mut server = Some(first);
    // The last server is killed.
    for signal in [Signal::SIGUSR1, Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let (status, said) = server.take().unwrap().end_by(signal);
        if signal == Signal::SIGKILL {
            assert_eq!(status.signal(), Some(9));
        } else {
            assert_eq!(status.code(), Some(0), "{said}");
        }
        assert!(said.starts_with("[restart] records are kept in "), "{said}");
        assert!(said.contains("memory.todana; every write is on disk when the kernel decides\n"), "{said}");
        let is_first = before.is_none();
        assert_eq!(said.contains("starting with a clean cache"), is_first, "{said}");
        let next = start(&place, &["-e", &memory]);
        assert_eq!(next.ask("gets plain flags\r\n"), versions);
        assert_eq!(
            next.ask("get plain flags gone num short\r\n"),
            "VALUE plain 0 5\r\nhello\r\nVALUE flags 77 1\r\nf\r\nVALUE num 0 2\r\n42\r\nEND\r\n"
        );
        let listed = next.ask("lru_crawler metadump all\r\n");
        assert!(listed.contains("key=dated exp=2000000000 "), "{listed}");
        let setting = format!("STAT memory_file {memory}.todana\r\n");
        assert!(next.ask("stats settings\r\n").contains(&setting));
        // A version after a restart differs from all versions before it.
        let fresh = next.ask("set new 0 0 1\r\nn\r\ngets new\r\n");
        assert!(before.replace(fresh.clone()).is_none_or(|before: String| before != fresh), "{fresh}");
        server = Some(next);
    }
    assert_eq!(fs::read(place.path("memory")).unwrap(), b"memcached's");
}

#[test]
fn flush_survives_a_restart() {
    let place = MemcachedFolder::new();
    let first = start(&place, &["-e", "memory"]);
    first.ask("set a 0 0 1\r\nx\r\nflush_all\r\nset b 0 0 1\r\ny\r\n");
    first.end_by(Signal::SIGUSR1);
    // A relative path is relative to the directory in which the server was started.
    assert!(place.path("memory.todana").is_dir());
    assert_eq!(start(&place, &["-e", "memory"]).ask("get a b\r\n"), "VALUE b 0 1\r\ny\r\nEND\r\n");
}

/// memcached aborts in this case, which a shell reports as 134.
#[test]
fn unusable_path_ends_the_start() {
    let place = MemcachedFolder::new();
    let refused = |words: &[&str]| {
        let output = place.command(words).stderr(Stdio::piped()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for daemon in [&[][..], &["-d"]] {
        let (code, message) = refused(&[&["-e", "/dev/null/memory"], daemon].concat());
        assert_eq!(code, Some(134));
        let wanted = "failed to open the memory file /dev/null/memory (-e): /dev/null/memory.todana: cannot ";
        assert!(message.starts_with(wanted), "{message}");
    }
    let (code, message) = refused(&["-e", ""]);
    assert_eq!((code, &*message), (Some(134), "failed to open the memory file: -e has an empty path\n"));
    let holder = start(&place, &["-e", "memory"]);
    let (code, message) = refused(&["-e", "memory"]);
    assert_eq!(code, Some(134));
    assert!(
        message.ends_with("memory.todana: is open in another process, or more than once in this one\n"),
        "{message}"
    );
    holder.end_by(Signal::SIGUSR1);
    // Damage is reported with its place, and nothing is served.
    let server = start(&place, &["-e", "memory"]);
    server.ask("set a 0 0 1\r\nx\r\n");
    server.end_by(Signal::SIGUSR1);
    fs::write(place.path("memory.todana/identity"), b"garbage").unwrap();
    let (code, message) = refused(&["-e", "memory"]);
    assert_eq!(code, Some(134));
    assert!(message.starts_with("failed to open the memory file memory (-e): "), "{message}");
}

#[test]
fn environment_adds_only_settings_without_an_option() {
    let place = MemcachedFolder::new();
    let with = |variables: &[(&str, &str)], words: &[&str]| {
        let mut command = place.command(words);
        command.envs(variables.iter().copied());
        place.start(command)
    };
    let kept = [("TODANA_DATA_DIR", "data"), ("TODANA_SYNC", "always")];
    let (status, said) = with(&kept, &[]).end_by(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    assert!(said.contains("/data; every write is on disk before its reply\n"), "{said}");
    let first = with(&kept[..1], &[]);
    first.ask("set a 0 0 1\r\nx\r\n");
    let (_, said) = first.end_by(Signal::SIGKILL);
    assert!(said.contains("/data; every write is on disk within 1000 ms\n"), "{said}");

    let foreign = [("TODANA_MEMORY_LIMIT", "1"), ("TODANA_PORT", "7"), ("TODANA_SERVER", "other")];
    let server = with(&foreign, &["-v"]);
    assert!(server.ask("stats settings\r\n").contains("STAT maxbytes 67108864\r\n"));
    let (_, said) = server.end_by(Signal::SIGTERM);
    assert_eq!(
        said,
        "TODANA_MEMORY_LIMIT has no effect; under this name only the command line counts\n\
         TODANA_PORT has no effect; under this name only the command line counts\n\
         Exiting normally\n"
    );
    // The command line takes precedence over the environment.
    let (_, said) = with(&kept, &["-e", "memory"]).end_by(Signal::SIGTERM);
    let outdone = "TODANA_DATA_DIR has no effect beside -e; records are kept in memory.todana\n";
    assert!(said.starts_with(outdone), "{said}");
    assert!(said.contains("/memory.todana; every write is on disk before its reply\n"), "{said}");
    let wrong = place.command(&[]).env("TODANA_SYNC", "always").stderr(Stdio::piped()).output().unwrap();
    assert_eq!(wrong.status.code(), Some(64));
    assert_eq!(wrong.stderr, b"TODANA_SYNC: needs TODANA_DATA_DIR or -e\n");
}
