//! Tests Kyoto Tycoon's protocols over sockets: slow requests, waits, large replies and malformed
//! requests.

use crate::kyoto_client;
use crate::running;

use kyoto_client::{answer, ask, call, kyoto, named, page, reported, store_many, until_waiting, watched};
use running::{Client, Running, WAIT_MAX, eventually};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use todana_server::{
    DatabaseName, DatabaseOptions, DatabaseSpec, KyotoOptions, ProtocolOptions, ServerOptions,
};

#[test]
fn signal_wakes_the_first_waiter_broadcast_wakes_all() {
    let server = Running::start(watched());
    let mut waiting: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client.send(&call("set", &format!("key\tk{number}\nvalue\tv\nWAIT\tgo\nWAITTIME\t1000\n")));
        until_waiting(&server, number as u64 + 1);
    }
    let mut other = server.connect();
    assert_eq!(ask(&mut other, "void", "SIGNAL\tgone\n"), (200, "SIGNALED\t0\n".into()));
    assert_eq!(ask(&mut other, "get", "key\tk0\n").0, 450);
    assert_eq!(ask(&mut other, "void", "SIGNAL\tgo\n"), (200, "SIGNALED\t3\n".into()));
    assert_eq!(answer(&mut waiting[0]), (200, vec![]));
    assert_eq!(ask(&mut other, "get", "key\tk0\n").0, 200);
    assert_eq!(ask(&mut other, "get", "key\tk1\n").0, 450);
    // Signals are also sent if the procedure fails.
    let failed = ask(&mut other, "get", "key\tnone\nSIGNAL\tgo\nSIGNALBROAD\t\n");
    assert_eq!(failed, (450, "ERROR\tDB: 7: no record: no record\nSIGNALED\t2\n".into()));
    for client in &mut waiting[1..] {
        assert_eq!(answer(client), (200, vec![]));
    }
    until_waiting(&server, 0);
}

#[test]
fn requests_after_a_wait_are_answered_after_it() {
    let server = Running::start(watched());
    let (mut waiting, mut other) = (server.connect(), server.connect());
    let requests =
        [call("set", "key\tk\nvalue\tv\nWAIT\t\nSIGNAL\tnext\n"), b"GET /k HTTP/1.1\r\n\r\n".to_vec()];
    waiting.send(&requests.concat());
    until_waiting(&server, 1);
    assert_eq!(ask(&mut other, "void", "SIGNAL\t\n").1, "SIGNALED\t1\n");
    assert_eq!(answer(&mut waiting), (200, b"SIGNALED\t0\n".to_vec()));
    assert_eq!(answer(&mut waiting), (200, b"v".to_vec()));
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let server = Running::start(kyoto());
    let mut client = server.connect();
    let since = Instant::now();
    assert_eq!(
        ask(&mut client, "set", "key\tk\nvalue\tv\nWAIT\tgo\nWAITTIME\t0.05\nSIGNAL\tx\n"),
        (503, "ERROR\tthe condition timed out\n".into())
    );
    assert!(since.elapsed() >= Duration::from_millis(50));
    assert_eq!(ask(&mut client, "get", "key\tk\n").0, 450);
    let long = "n".repeat(70_000);
    assert_eq!(ask(&mut client, "void", &format!("WAIT\t{long}\n")).0, 400);
}

#[test]
fn a_stop_ends_waits() {
    let mut server = Running::start(watched());
    let mut waiting: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    for client in &mut waiting {
        // The second wait ends at once, because the server is stopping.
        client.send(&[call("void", "WAIT\tgo\nWAITTIME\tinf\n"), call("void", "WAIT\tgo\n")].concat());
    }
    until_waiting(&server, 10);
    server.handle.stop();
    for client in &mut waiting {
        assert_eq!(answer(client), (503, b"ERROR\tthe condition timed out\n".to_vec()));
        assert_eq!(answer(client), (503, b"ERROR\tthe condition timed out\n".to_vec()));
        assert_eq!(client.rest(), b"");
    }
    server.join();
}

#[test]
fn disconnected_client_no_longer_waits() {
    let server = Running::start(watched());
    let (mut one, mut two) = (server.connect(), server.connect());
    one.send(&call("void", "WAIT\tgo\nWAITTIME\t1000000\n"));
    until_waiting(&server, 1);
    two.send(&call("void", "WAIT\tgo\nWAITTIME\t1000000\n"));
    until_waiting(&server, 2);
    drop(one);
    until_waiting(&server, 1);
    // The signal does not go to the client that has disconnected.
    let mut other = server.connect();
    assert_eq!(ask(&mut other, "void", "SIGNAL\tgo\n").1, "SIGNALED\t1\n");
    assert_eq!(answer(&mut two).0, 200);
    eventually("its connection is closed", || reported(&mut other, "serv_conn_count") == 2);
}

#[test]
fn other_clients_are_served_during_a_key_search() {
    // A single worker serves both.
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions { database: named(":"), ..watched().databases },
        ..watched()
    });
    let (mut slow, mut other) = (server.connect(), server.connect());
    for start in (0..100_000).step_by(20_000) {
        store_many(&mut slow, start..start + 20_000, b"v");
    }
    // The key is far from all others, so the distance must be computed for each of them.
    let origin = "x".repeat(200);
    let long = call("match_similar", &format!("origin\t{origin}\nrange\t3000\nmax\t1\n"));
    slow.send(&[long.as_slice(), b"GET /00000001 HTTP/1.1\r\n\r\n"].concat());
    eventually("it is under way", || page(&server, "todana_kyoto_background_calls") == 1);
    let mut served = 0;
    while page(&server, "todana_kyoto_background_calls") == 1 && served < 100 {
        assert_eq!(ask(&mut other, "get", "key\t00000007\n"), (200, "value\tv\n".into()));
        served += 1;
    }
    assert!(served > 0);
    let (status, found) = answer(&mut slow);
    assert_eq!((status, found.len()), (200, b"_00000000\t0\nnum\t1\n".len()));
    // The replies come in order.
    assert_eq!(answer(&mut slow), (200, b"v".to_vec()));
    assert_eq!(page(&server, "todana_kyoto_background_calls_done_total"), 1);
    let (_, found) = ask(&mut other, "match_prefix", "prefix\t0000000\n");
    assert!(found.ends_with("\nnum\t10\n"), "{found}");
    let (_, found) = ask(&mut other, "match_regex", "regex\t^0.*77$\nSIGNAL\tx\n");
    assert!(found.contains("num\t1000\n") && found.starts_with("SIGNALED\t0\n"), "{}", &found[..100]);
    assert_eq!(ask(&mut other, "match_regex", "regex\t(\n").0, 450);
    assert_eq!(ask(&mut other, "vacuum", ""), (200, String::new()));
}

#[test]
fn stop_ends_a_key_search() {
    let mut server = Running::start(ServerOptions {
        databases: DatabaseOptions { database: named(":"), ..watched().databases },
        ..watched()
    });
    let mut slow = server.connect();
    for start in (0..100_000).step_by(20_000) {
        store_many(&mut slow, start..start + 20_000, b"v");
    }
    let origin = "x".repeat(60_000);
    // The search would take minutes.
    slow.send(&call("match_similar", &format!("origin\t{origin}\nrange\t70000\n")));
    eventually("it is under way", || page(&server, "todana_kyoto_background_calls") == 1);
    server.handle.stop();
    let (status, body) = answer(&mut slow);
    assert_eq!((status, String::from_utf8(body).unwrap()), (500, "ERROR\tthe server is stopping\n".into()));
    server.join();
}

#[test]
fn a_search_ends_when_its_client_goes() {
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions { database: named(":"), ..watched().databases },
        ..watched()
    });
    let mut other = server.connect();
    for start in (0..100_000).step_by(20_000) {
        store_many(&mut other, start..start + 20_000, b"v");
    }
    let origin = "x".repeat(60_000);
    // These are more searches than can run at once, and each would take minutes.
    let gone: Vec<Client> = (0..6)
        .map(|_| {
            let mut client = server.connect();
            client.send(&call("match_similar", &format!("origin\t{origin}\nrange\t70000\n")));
            client
        })
        .collect();
    eventually("they are under way", || page(&server, "todana_kyoto_background_calls") == 6);
    drop(gone);
    let (_, found) = ask(&mut other, "match_regex", "regex\t^0.*77$\n");
    assert!(found.ends_with("\nnum\t1000\n"), "{}", &found[..100]);
    eventually("nobody is there for them", || page(&server, "todana_kyoto_background_calls") == 0);
    eventually("their connections are closed", || reported(&mut other, "serv_conn_count") == 1);
}

#[test]
fn vacuum_removes_all_that_is_dead() {
    for name in [":", "%"] {
        let server = Running::start(ServerOptions {
            databases: DatabaseOptions { database: named(name), ..kyoto().databases },
            ..kyoto()
        });
        let mut client = server.connect();
        let records: String = (0..20_000).map(|key| format!("_{key}\tv\n")).collect();
        assert_eq!(ask(&mut client, "set_bulk", &format!("xt\t-1000\n{records}")).0, 200);
        assert_eq!(ask(&mut client, "set", "key\tlive\nvalue\tv\n").0, 200);
        assert_eq!(ask(&mut client, "get", "key\t5\n").0, 450);
        assert_eq!(ask(&mut client, "vacuum", "").0, 200);
        let (_, status) = ask(&mut client, "status", "");
        assert!(status.starts_with("count\t1\n"), "{name}: {status}");
    }
}

#[test]
fn synchronize_runs_commands_of_its_directory_alone() {
    let folder = tempfile::tempdir().unwrap();
    let commands = folder.path().join("commands");
    std::fs::create_dir(&commands).unwrap();
    let told = folder.path().join("told");
    let write = |name: &str, text: &str| {
        let path = commands.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    write("backup", &format!("#!/bin/sh\necho \"$#|$1|$2\" > {}\n", told.display()));
    write("fails", "#!/bin/sh\nexit 3\n");
    std::fs::write(folder.path().join("outside"), "#!/bin/sh\nexit 0\n").unwrap();
    std::fs::write(commands.join("no_program"), "").unwrap();
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { commands: Some(commands), ..kyoto().protocols.kyoto },
            ..kyoto().protocols
        },
        databases: DatabaseOptions { database: named(":"), ..kyoto().databases },
        ..kyoto()
    });
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "synchronize", "command\tbackup\n"), (200, String::new()));
    let told = std::fs::read_to_string(told).unwrap();
    let words: Vec<&str> = told.trim_end().split('|').collect();
    assert_eq!(words[..2], ["2", ":"]);
    assert!(words[2].len() == 20 && words[2].bytes().all(|byte| byte.is_ascii_digit()), "{told}");
    for command in ["fails", "nowhere", "no_program", "../outside", "..", "/bin/true", "backup;true"] {
        let refused = (500, "ERROR\tDB: 8: logical inconsistency: postprocessing failed\n".to_string());
        assert_eq!(ask(&mut client, "synchronize", &format!("command\t{command}\n")), refused, "{command}");
    }
}

/// Creates a folder with these commands for `synchronize`.
fn commands(folder: &Path, scripts: &[(&str, String)]) -> Option<PathBuf> {
    let commands = folder.join("commands");
    std::fs::create_dir(&commands).unwrap();
    for (name, text) in scripts {
        let path = commands.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    Some(commands)
}

/// Returns the name of a database on disk in this folder.
fn on_disk(folder: &Path, name: &str) -> DatabaseName {
    DatabaseName::parse(&folder.join(name).display().to_string()).unwrap()
}

/// In an earlier version, every command removed the file with the name of its database and
/// `.backup`, even if it was an operator's own backup, and even if the command had created no
/// image.
#[test]
fn synchronize_keeps_backups_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let kyoto_commands = commands(folder.path(), &[("looks", "test -s \"$1\"".into())]);
    let database = Some(on_disk(folder.path(), "casket.kch"));
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { commands: kyoto_commands, ..kyoto().protocols.kyoto },
            ..kyoto().protocols
        },
        databases: DatabaseOptions { database, ..kyoto().databases },
        ..kyoto()
    });
    let mut client = server.connect();
    let own = folder.path().join("casket.kch.backup");
    std::fs::write(&own, "an operator's own").unwrap();
    let refused = (500, "ERROR\tDB: 8: logical inconsistency: postprocessing failed\n".to_string());
    for _ in 0..2 {
        assert_eq!(ask(&mut client, "synchronize", "command\tlooks\n"), refused);
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "an operator's own");
    }
    std::fs::remove_file(&own).unwrap();
    assert_eq!(ask(&mut client, "synchronize", "command\tlooks\n"), (200, String::new()));
    assert!(!own.exists());
}

/// In an earlier version, the command for one database blocked those for all others.
#[test]
fn synchronize_waits_only_for_its_own_databases_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let holds = format!(
        "touch {}; for i in $(seq 600); do test -e {} && exit 0; sleep 0.1; done; exit 1",
        file("begun").display(),
        file("release").display()
    );
    let kyoto_commands = commands(folder.path(), &[("holds", holds), ("looks", "test -s \"$1\"".into())]);
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { commands: kyoto_commands, ..watched().protocols.kyoto },
            ..watched().protocols
        },
        databases: DatabaseOptions {
            database: Some(on_disk(folder.path(), "a.kch")),
            further: vec![DatabaseSpec { name: on_disk(folder.path(), "b.kch"), data: None }],
            ..watched().databases
        },
        ..watched()
    });
    let (mut first, mut second, mut other) = (server.connect(), server.connect(), server.connect());
    first.send(&call("synchronize", "command\tholds\n"));
    eventually("the first command is at work", || file("begun").exists());
    assert_eq!(ask(&mut other, "synchronize", "DB\t1\ncommand\tlooks\n"), (200, String::new()));
    second.send(&call("synchronize", "command\tlooks\n"));
    eventually("the second waits", || page(&server, "todana_kyoto_background_calls") == 2);
    assert!(file("a.kch.backup").exists());
    std::fs::write(file("release"), "").unwrap();
    assert_eq!(answer(&mut first), (200, vec![]));
    assert_eq!(answer(&mut second), (200, vec![]));
    assert!(!file("a.kch.backup").exists());
}

#[test]
fn slow_reader_gets_all_records() {
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions { database: named("%"), ..kyoto().databases },
        ..kyoto()
    });
    let (mut client, mut other) = (server.connect(), server.connect());
    let value = vec![b'v'; 1000];
    store_many(&mut client, 0..20_000, &value);
    let count = 20_000u32;
    let mut request = [&[0xBA, 0, 0, 0, 0][..], &count.to_be_bytes()].concat();
    for key in 0..count {
        request.extend([0, 0, 0, 0, 0, 8]);
        request.extend(format!("{key:08}").as_bytes());
    }
    client.send(&request);
    client.expect(&[&[0xBA][..], &count.to_be_bytes()].concat());
    for key in 0..count {
        if key % 5000 == 0 {
            // The one worker also serves other clients.
            assert_eq!(ask(&mut other, "check", "key\t00000001\n").1, "vsiz\t1000\n");
        }
        let record = client.take(2 + 4 + 4 + 8 + 8 + 1000);
        assert_eq!(record[18..26], *format!("{key:08}").as_bytes());
    }
    // The same records as a map.
    let keys: String = (0..count).map(|key| format!("_{key:08}\t\n")).collect();
    client.send(&call("get_bulk", &keys));
    let (status, body) = answer(&mut client);
    assert_eq!((status, body.len()), (200, 20_000 * 1011 + b"num\t20000\n".len()));
}

#[test]
fn requests_cut_anywhere_are_the_same_requests() {
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions { database: named("%"), ..kyoto().databases },
        ..kyoto()
    });
    let binary = [
        &[0xB8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..],
        &[0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, b'b', b'1'],
        &[0xBA, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, b'b'],
    ]
    .concat();
    let requests = [
        &b"PUT /r HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"[..],
        &binary,
        &call("get", "key\tr\n"),
        b"GET /b HTTP/1.1\r\n\r\n",
        &call("match_prefix", "prefix\t\n"),
    ]
    .concat();
    let expect = |client: &mut Client| {
        assert_eq!(answer(client), (201, vec![]));
        client.expect(&[0xB8, 0, 0, 0, 1]);
        client
            .expect(&[0xBA, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        client.expect(b"b1");
        assert_eq!(answer(client), (200, b"value\tabc\n".to_vec()));
        assert_eq!(answer(client), (200, b"1".to_vec()));
        assert_eq!(answer(client), (200, b"_b\t0\n_r\t1\nnum\t2\n".to_vec()));
    };
    let mut client = server.connect();
    for cut in 0..requests.len() {
        client.send(&requests[..cut]);
        client.send(&requests[cut..]);
        expect(&mut client);
    }
    requests.iter().for_each(|&byte| client.send(&[byte]));
    expect(&mut client);
    // A half-closed client gets the answers to its complete requests.
    client.send(&requests);
    client.stream.shutdown(Shutdown::Write).unwrap();
    expect(&mut client);
    assert_eq!(client.rest(), b"");
}

#[test]
fn garbage_does_no_harm() {
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions { database: named("%"), ..kyoto().databases },
        ..kyoto()
    });
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let whole = [
        &b"POST /rpc/set?key=k&value=v HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"[..],
        b"GET /k HTTP/1.1\r\n\r\n",
        b"\xB8\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01\0\0\0\x01\x7f\xff\xff\xff\xff\xff\xff\xff\x62\x31",
        b"\xBA\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01b\xB4\0\0\0\0\0\0\0\x01\0\0\0\x01a\0\0\0\0\0\0\0\0",
        &call("cur_jump", "CUR\t1\nkey\ta\n"),
    ];
    for _ in 0..400 {
        let mut input: Vec<u8> =
            (0..random.usize(1..4)).flat_map(|_| whole[random.usize(..whole.len())]).copied().collect();
        for _ in 0..random.usize(..4) {
            let at = random.usize(..input.len());
            match random.u8(..3) {
                0 => input[at] = random.u8(..),
                1 => input.insert(at, random.u8(..)),
                _ => input.truncate(at.max(1)),
            }
        }
        let mut stream = TcpStream::connect(server.addresses[0]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let _ = stream.write_all(&input);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("seed {seed}: it hangs on {}", input.escape_ascii());
            }
            _ => {}
        }
    }
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "void", "").0, 200);
    eventually("all are gone", || reported(&mut client, "serv_conn_count") == 1);
}

/// In an earlier version, a client that uses a new number for each scan, as ukt and
/// Cache::KyotoTycoon do, was refused from the 1,025th number on.
#[test]
fn cursors_without_end_are_recycled() {
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions { database: named("%"), ..kyoto().databases },
        ..kyoto()
    });
    let mut client = server.connect();
    store_many(&mut client, 0..10, b"v");
    // A cursor that is used again and again keeps its position. So does a cursor at its end, if it
    // was used last.
    assert_eq!(ask(&mut client, "cur_jump", "CUR\t0\nkey\t00000005\n").0, 200);
    let number_max = 10_000;
    for batch in 0..10 {
        let numbers = batch * number_max / 10 + 1..=(batch + 1) * number_max / 10;
        let calls =
            numbers.clone().map(|number| call("cur_jump", &format!("CUR\t{number}\nkey\t00000009\n")));
        let step = |number| call("cur_get_key", &format!("CUR\t{number}\nstep\t\n"));
        let calls: Vec<u8> =
            calls.zip(numbers.clone().map(step)).flat_map(|(jump, step)| [jump, step].concat()).collect();
        client.send(&calls);
        for _ in numbers {
            assert_eq!(answer(&mut client), (200, vec![]));
            assert_eq!(answer(&mut client), (200, b"key\t00000009\n".to_vec()));
        }
        assert_eq!(ask(&mut client, "cur_get_key", "CUR\t0\n"), (200, "key\t00000005\n".into()));
    }
    // If no cursor is at its end, those that were used longest ago are removed.
    for number in 1..=8192 {
        assert_eq!(ask(&mut client, "cur_jump", &format!("CUR\t{number}\n")).0, 200);
    }
    assert_eq!(ask(&mut client, "cur_get_key", "CUR\t8192\n"), (200, "key\t00000000\n".into()));
    assert_eq!(ask(&mut client, "cur_get_key", "CUR\t1\n").0, 450);
    // Long keys are bounded by their bytes.
    let long = "k".repeat(64 << 10);
    assert_eq!(ask(&mut client, "set", &format!("key\t{long}\nvalue\tv\n")).0, 200);
    for number in 20_000..20_040 {
        assert_eq!(ask(&mut client, "cur_jump", &format!("CUR\t{number}\nkey\tk\n")).0, 200);
    }
    assert_eq!(ask(&mut client, "cur_get_key", "CUR\t20000\n").0, 450);
    assert_eq!(ask(&mut client, "cur_get_key", "CUR\t20039\n"), (200, format!("key\t{long}\n")));
    // Each connection has its own cursors.
    let mut other = server.connect();
    assert_eq!(ask(&mut other, "cur_get_key", "CUR\t20039\n").0, 450);
}

/// In an earlier version, a head above 64 KiB was answered by a reset, and a body that ended early
/// got no answer.
#[test]
fn long_heads_and_short_bodies_are_answered() {
    let server = Running::start(kyoto());
    let head = |len: usize| {
        let field = format!("X-Field: {}\r\n", "a".repeat(1000));
        format!("GET /rpc/void HTTP/1.1\r\n{}\r\n", field.repeat(len / field.len())).into_bytes()
    };
    for len in [70_000, 1_000_000] {
        let mut client = server.connect();
        client.send(&head(len));
        assert_eq!(answer(&mut client), (200, vec![]), "{len}");
    }
    let mut client = server.connect();
    client.send(&head((1 << 20) + 2000)[..(1 << 20) + 1]);
    assert_eq!(answer(&mut client).0, 431);
    for request in [
        "POST /rpc/set HTTP/1.1\r\nContent-Length: 100\r\n\r\nkey=a",
        "PUT /x HTTP/1.1\r\nContent-Length: 100\r\n\r\nkey=a",
        "PUT /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ] {
        let mut client = server.connect();
        client.send(request.as_bytes());
        client.stream.shutdown(Shutdown::Write).unwrap();
        let told = (400, b"400 Bad Request (receiving data failed)\n".to_vec());
        assert_eq!(answer(&mut client), told, "{request}");
    }
}

/// This is the example script of the original, unchanged. Its `cp` once copied nothing, because the
/// path was a directory, and reported success.
#[test]
fn synchronize_command_copies_a_disk_backup() {
    let folder = tempfile::tempdir().unwrap();
    let commands = folder.path().join("commands");
    std::fs::create_dir(&commands).unwrap();
    let script = commands.join("dbbackup");
    std::fs::write(
        &script,
        "#! /bin/sh\nsrcfile=\"$1\"\ndestfile=\"$1.$2\"\ncp -f \"$srcfile\" \"$destfile\"\nexit 0\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    for kind in ["kch", "kct"] {
        let path = folder.path().join(format!("casket.{kind}"));
        let sync = todana_server::SyncPolicy::Every(Duration::from_secs(1));
        let data = (kind == "kct").then(|| todana_server::DataDirectoryOptions::new(path.clone(), sync));
        let database = named(path.to_str().unwrap());
        let server = Running::start(ServerOptions {
            protocols: ProtocolOptions {
                kyoto: KyotoOptions { commands: Some(commands.clone()), ..kyoto().protocols.kyoto },
                ..kyoto().protocols
            },
            databases: DatabaseOptions { database, data, ..kyoto().databases },
            ..kyoto()
        });
        let mut client = server.connect();
        store_many(&mut client, 0..1000, b"value");
        assert_eq!(ask(&mut client, "synchronize", "command\tdbbackup\n"), (200, String::new()));
        assert_eq!(ask(&mut client, "clear", "").0, 200);
        let begins = format!("casket.{kind}.backup");
        let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_copy =
            |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&begins);
        let copies: Vec<_> = entries.filter(is_copy).collect();
        // The image of the copy has been removed.
        assert_eq!(copies.len(), 1, "{copies:?}");
        assert_eq!(copies[0].extension().unwrap().len(), 20);
        let unpacked = folder.path().join(format!("{kind}.unpacked"));
        let disk = std::sync::Arc::new(todana::disk::SystemDisk);
        let mut receiver = todana::backup::BackupReceiver::create(disk, &unpacked).unwrap();
        receiver.take(&std::fs::read(&copies[0]).unwrap()).unwrap();
        assert!(receiver.finish(&mut |_| ()).unwrap().records >= 1000, "{kind}");
    }
}

/// The database stores nothing: writes reach the log, but not the database.
#[test]
fn database_that_stores_nothing_logs_everything() {
    let folder = tempfile::tempdir().unwrap();
    let sync = todana_server::SyncPolicy::Every(Duration::from_millis(10));
    let data = Some(todana_server::DataDirectoryOptions::new(folder.path().join("log"), sync));
    let options = |stores_nothing| ServerOptions {
        databases: DatabaseOptions {
            stores_nothing,
            data: data.clone(),
            database: named(":"),
            ..kyoto().databases
        },
        ..kyoto()
    };
    let server = Running::start(options(true));
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "set", "key\tk\nvalue\tv\n").0, 200);
    assert_eq!(ask(&mut client, "increment", "key\tn\nnum\t5\n"), (200, "num\t5\n".into()));
    for key in ["k", "n"] {
        assert_eq!(ask(&mut client, "get", &format!("key\t{key}\n")).0, 450);
    }
    assert_eq!(ask(&mut client, "remove", "key\tk\n").0, 450);
    assert_eq!(ask(&mut client, "status", "").1.lines().next(), Some("count\t0"));
    drop((server, client));
    // A server that stores records has all of them after it replays the same log.
    let server = Running::start(options(false));
    assert_eq!(ask(&mut server.connect(), "get", "key\tk\n"), (200, "value\tv\n".into()));
}

#[test]
fn report_names_lua_and_zlib_among_its_features() {
    let server = Running::start(kyoto());
    let (_, report) = ask(&mut server.connect(), "report", "");
    // Clients search this word to detect scripts.
    assert!(report.contains("conf_kt_features\t(epoll)(lua)(todana)\n"), "{report}");
    assert!(report.contains("conf_kc_features\t(atomic)(zlib)\n"), "{report}");
}

#[test]
fn memcached_and_kyoto_share_port_and_records() {
    let server = Running::start(watched());
    let (mut text, mut kyoto) = (server.connect(), server.connect());
    text.set(b"k", b"memcached");
    assert_eq!(ask(&mut kyoto, "get", "key\tk\n").1, "value\tmemcached\n");
    assert_eq!(ask(&mut kyoto, "set", "key\tk\nvalue\tkyoto\n").0, 200);
    text.expect_value(b"k", b"kyoto");
    // A key that begins with the name of an HTTP method is not a request of HTTP.
    text.send(b"get GET\r\n");
    text.expect(b"END\r\n");
    kyoto.send(b"GET /k HTTP/1.1\r\n\r\n");
    assert_eq!(answer(&mut kyoto), (200, b"kyoto".to_vec()));
    // Both dialects are counted.
    assert_eq!(page(&server, "todana_kyoto_requests_total{kind=\"call\"}"), 2);
    assert_eq!(page(&server, "todana_kyoto_requests_total{kind=\"rest\"}"), 1);
    assert_eq!(page(&server, "todana_kyoto_commands_total{command=\"get\",status=\"hit\"}"), 2);
    assert!(page(&server, "todana_kyoto_read_bytes_total") > 100);
    assert_eq!(text.stat("cmd_get"), "4");
}
