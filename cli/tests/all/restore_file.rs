//! A backup in a single file, as a running server passes it to a command (`synchronize`), can be
//! restored to each kind of database.

use crate::running;

use running::{RunningServer, TestFolder, TextClient, stop};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Returns records with all possible attributes, and one that is longer than a piece of a backup.
fn stored() -> String {
    let mut lines: Vec<String> = (0..3000).map(|number| format!("k{number:05}\tvalue {number}\n")).collect();
    lines.push(format!("long\t{}\n", "x".repeat(2_000_000)));
    lines.push("flagged\t1\t77\n".into());
    lines.push("mortal\t1\t0\t4000000000\n".into());
    lines.push("sliding\t1\t5\t4000000000~300\n".into());
    lines.push("odd\\x00\\t\t\\n\n".into());
    lines.concat()
}

/// Returns all records of a database as text, with flags and expiry, in order.
fn records(folder: &TestFolder, place: &str) -> Vec<String> {
    let exported = folder.expect(&["export", place], 0);
    let mut lines: Vec<String> = exported.lines().map(String::from).collect();
    lines.sort();
    lines
}

/// Creates the directory with the command, which copies its input to a file.
fn commands(folder: &TestFolder) -> String {
    let directory = folder.path("commands");
    let script = format!("{directory}/dbbackup");
    fs::create_dir(&directory).unwrap();
    fs::write(&script, "#! /bin/sh\ncp \"$1\" \"$1.$2\"\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Lets a server pass a backup to the command.
fn synchronize(server: &RunningServer) {
    let body = "command\tdbbackup\n";
    let request = format!(
        "POST /rpc/synchronize HTTP/1.1\r\nHost: {}\r\nContent-Type: text/tab-separated-values\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        server.address,
        body.len()
    );
    let mut client = TextClient::connect(server);
    client.send(request.as_bytes());
    assert_eq!(client.line(), "HTTP/1.1 200 OK\r\n");
    client.0.read_to_end(&mut Vec::new()).unwrap();
}

fn files_with_prefix(folder: &TestFolder, prefix: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix)).collect()
}

#[test]
fn single_file_backup_becomes_each_kind_of_database() {
    for (name, targets) in
        [("x.tree", &["again.tree", "again.hash", "again"][..]), ("x.hash", &["again.hash"])]
    {
        let folder = TestFolder::new();
        assert!(folder.import(name, &stored()).status.success());
        let mut expected = records(&folder, name);
        assert_eq!(expected.len(), 3005);
        let server = RunningServer::start(&[&folder.path(name), "--commands", &commands(&folder)]);
        let mut client = TextClient::connect(&server);
        assert_eq!(client.ask("set live 9 2000000000 4\r\nfour\r\n"), "STORED\r\n");
        assert_eq!(client.ask("delete k00007\r\n"), "DELETED\r\n");
        synchronize(&server);
        assert_eq!(client.set("late", b"is not in it"), "STORED\r\n");
        drop(client);
        stop(server);
        expected.retain(|line| !line.starts_with("k00007\t"));
        expected.push("live\tfour\t9\t2000000000".into());
        expected.sort();

        let copies = files_with_prefix(&folder, &format!("{name}.backup"));
        assert_eq!(copies.len(), 1, "{copies:?}");
        let file = copies[0].to_str().unwrap();
        for target in targets {
            let said = folder.expect(&["restore", file, target], 0);
            let found = records(&folder, target);
            let missing: Vec<&String> = expected.iter().filter(|line| !found.contains(line)).collect();
            assert!(found == expected, "{name} as {target}: {missing:.60?}");
            assert!(said.starts_with(&format!("{target}: 3005 records restored")), "{said}");
            folder.expect(&["check", target], 0);
            assert!(folder.complaint(&["restore", file, target], 2).contains("exists already"));
        }
        // A data directory can be served as a hash or as a tree in memory.
        if targets.contains(&"again") {
            for kind in ["mem:hash", "mem:tree"] {
                let server = RunningServer::start(&[kind, "--data-dir", &folder.path("again")]);
                assert_eq!(server.expect(&["get", "k00008"], 0), "value 8");
                stop(server);
                assert!(records(&folder, "again") == expected, "{kind}");
            }
        } else {
            for target in ["again", "again.tree"] {
                assert!(folder.complaint(&["restore", file, target], 2).contains("NAME.hash"));
            }
        }
        // A truncated backup leaves no files.
        let bytes = fs::read(file).unwrap();
        fs::write(folder.path("part"), &bytes[..bytes.len() / 2]).unwrap();
        let said = folder.complaint(&["restore", "part", "part.hash"], 3);
        assert!(said.contains("part: neither a directory nor a complete single-file backup"), "{said}");
        let left = [".todana", "part."].map(|prefix| files_with_prefix(&folder, prefix));
        assert_eq!(left, [const { Vec::<PathBuf>::new() }; 2]);
    }
}
