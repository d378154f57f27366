//! The commands for data directories do no harm: they do not disturb each other, do not write
//! through symbolic links, remove nothing before they have checked everything, and send no control
//! characters to a terminal.

use crate::directory_contents;
use crate::running;

use directory_contents::contents;
use running::{expect, refused, text, todana};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use todana::{DbOptions, Records};

/// Creates a data directory with these records.
fn directory_with(path: &Path, records: &[(&str, &[u8])]) {
    let db = DbOptions::default().data_dir(path).open("mem:hash").unwrap();
    for (key, value) in records {
        db.set(key.as_bytes(), value).unwrap();
    }
}

#[test]
fn one_of_concurrent_restores_wins_the_others_fail() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (data, backup) = (path("data"), path("backup"));
    let value = vec![b'v'; 100_000];
    let keys: Vec<String> = (0..40).map(|n| format!("key:{n}")).collect();
    let records: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &value[..])).collect();
    directory_with(data.as_ref(), &records);
    expect(&["backup", &data, &backup], 0);
    for round in 0..5 {
        let target = path(&format!("target {round}"));
        let children: Vec<_> = (0..4)
            .map(|_| {
                let mut command = todana();
                command.args(["restore", &backup, &target]).stdout(Stdio::piped()).stderr(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        let mut made = 0;
        for child in children {
            let output = child.wait_with_output().unwrap();
            let why = text(&output.stderr);
            match output.status.code() {
                Some(0) => made += 1,
                Some(2) => assert!(why.contains("exists already"), "{why}"),
                code => assert!(code == Some(3) && why.contains("another process is creating it"), "{why}"),
            }
        }
        assert_eq!(made, 1);
        assert!(expect(&["verify", &target], 0).contains("40 records"));
        assert!(!Path::new(&format!("{target}.partial")).exists());
    }
}

#[test]
fn links_are_not_followed_for_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (data, elsewhere) = (path("data"), path("elsewhere"));
    directory_with(data.as_ref(), &[("key", b"value")]);
    directory_with(elsewhere.as_ref(), &[("other", b"value")]);
    symlink(&elsewhere, path("target.partial")).unwrap();
    let before = contents(elsewhere.as_ref());
    for command in ["backup", "restore"] {
        let why = refused(&[command, &data, &path("target")], 2);
        assert!(why.contains("target.partial: is a symbolic link"), "{why}");
        assert!(contents(elsewhere.as_ref()) == before, "{command}");
    }
}

#[test]
fn verify_and_salvage_change_nothing_they_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (data, backup, target) = (path("data"), path("backup"), path("target"));
    directory_with(data.as_ref(), &[("key", b"value")]);
    expect(&["backup", &data, &backup], 0);
    for place in ["data/log/x.partial", "data/checkpoints/x.partial", "data/identity.partial"] {
        fs::write(path(place), "half").unwrap();
    }
    fs::remove_file(path("data/lock")).unwrap();
    let before = contents(folder.path());
    expect(&["verify", &data], 0);
    assert!(contents(folder.path()) == before);
    for identity in ["data/identity", "backup/identity"] {
        fs::write(path(identity), "damaged").unwrap();
    }
    let before = contents(folder.path());
    for source in [&data, &backup] {
        assert!(expect(&["verify", source], 1).contains("identity"));
        assert!(contents(folder.path()) == before);
        expect(&["salvage", source, &target], 0);
        expect(&["verify", &target], 0);
        assert!(expect(&["list", &target], 0).ends_with("key\n"));
        fs::remove_dir_all(&target).unwrap();
        assert!(contents(folder.path()) == before);
    }
}

#[test]
fn log_output_cannot_control_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").to_str().unwrap().to_string();
    let value = "\u{9b}2J\u{85}\u{1b}[2J\u{e9}".as_bytes();
    directory_with(data.as_ref(), &[("k\u{9d}", value)]);
    let shown = expect(&["log", &data], 0);
    assert!(shown.ends_with("\tk\\xc2\\x9d\tsize=12\t\\xc2\\x9b2J\\xc2\\x85\\x1b[2J\u{e9}\n"), "{shown:?}");
    assert!(!shown.chars().any(|shown| shown.is_control() && !"\t\n".contains(shown)));
}
