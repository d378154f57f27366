//! Tests databases that are opened only for reading (`mode=r`). Several servers may open one, and
//! each dialect refuses changes with its own error.

use crate::kyoto_client;
use crate::running;

use kyoto_client::{answer, ask, call, kyoto};
use running::{Client, Running};
use std::fs;
use std::path::Path;
use todana::{DatabaseName, Db, DbOptions, Records};
use todana_server::{
    DataDirectoryOptions, DatabaseOptions, KyotoOptions, ListenOptions, ProtocolOptions, Server,
    ServerOptions, SyncPolicy,
};

const KINDS: [&str; 3] = ["mem:tree", "carts.hash", "carts.tree"];

fn name(kind: &str, folder: &Path) -> String {
    if kind.starts_with("mem:") { kind.into() } else { folder.join(kind).display().to_string() }
}

fn data_dir(kind: &str, folder: &Path) -> Option<std::path::PathBuf> {
    match kind {
        "mem:tree" => Some(folder.join("data")),
        "carts.tree" => Some(folder.join(kind)),
        _ => None,
    }
}

/// Returns the options of a server of one database. `words` follow its name, and may make it
/// read-only.
fn serving(kind: &str, folder: &Path, words: &str) -> ServerOptions {
    let script = folder.join("script.lua");
    fs::write(
        &script,
        "kt = __kyototycoon__ function write(i, o) if kt.db:set('a', '2') then return kt.RVSUCCESS end \
         o.code = kt.db:error():code() return kt.RVSUCCESS end\n\
         function begin(i, o) o.begun = tostring(kt.db:begin_transaction()) return kt.RVSUCCESS end\n\
         function read(i, o) o.value = kt.db:get('a') return kt.RVSUCCESS end\n",
    )
    .unwrap();
    ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { script: Some(script), ..kyoto().protocols.kyoto },
            ..kyoto().protocols
        },
        databases: DatabaseOptions {
            database: Some(DatabaseName::parse(&format!("{}{words}", name(kind, folder))).unwrap()),
            data: data_dir(kind, folder)
                .map(|directory| DataDirectoryOptions::new(directory, SyncPolicy::Never)),
            ..kyoto().databases
        },
        ..kyoto()
    }
}

fn fill(kind: &str, folder: &Path) {
    let options = DbOptions::default();
    let db: Db = match kind.starts_with("mem:") {
        true => options.data_dir(folder.join("data")).open(kind).unwrap(),
        false => options.open(&name(kind, folder)).unwrap(),
    };
    db.set(b"a", b"1").unwrap();
}

fn start(options: ServerOptions) -> Running {
    let mut server =
        Server::bind(ServerOptions { listen: ListenOptions { port: 0, ..options.listen }, ..options })
            .unwrap();
    server.load(&mut |_| ()).unwrap();
    Running::of(server)
}

const PERMISSION: &str = "ERROR\tDB: 4: no permission: permission denied\n";

#[test]
fn every_dialect_refuses_changes_in_its_words() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        fill(kind, folder.path());
        let servers: [Running; 2] = std::array::from_fn(|_| start(serving(kind, folder.path(), "#mode=r")));
        for server in &servers {
            text(&mut server.connect());
            binary(&mut server.connect());
            calls(&mut server.connect());
            rest(&mut server.connect());
            bulk(server);
        }
        let writer = Server::bind(ServerOptions {
            listen: ListenOptions { port: 0, ..serving(kind, folder.path(), "").listen },
            ..serving(kind, folder.path(), "")
        });
        let refused = match writer {
            Ok(mut server) => server.load(&mut |_| ()).expect_err("it is open for reading").to_string(),
            Err(error) => error.to_string(),
        };
        assert!(refused.contains("is open for reading"), "{refused}");
        drop(servers);
        // Nothing has changed.
        let server = start(serving(kind, folder.path(), ""));
        let mut client = server.connect();
        client.expect_value(b"a", b"1");
        client.set(b"a", b"2");
    }
}

fn text(client: &mut Client) {
    client.expect_value(b"a", b"1");
    for change in [
        "set a 0 0 1\r\n2\r\n",
        "add b 0 0 1\r\n2\r\n",
        "append a 0 0 1\r\n2\r\n",
        "delete a\r\n",
        "delete missing\r\n",
        "incr a 1\r\n",
        "touch a 10\r\n",
        "gat 10 a\r\n",
        "flush_all\r\n",
        "ms a 1\r\n2\r\n",
        "md a\r\n",
        "mg a v T10\r\n",
    ] {
        client.send(change.as_bytes());
        assert_eq!(client.line(), "SERVER_ERROR the database is read-only\r\n", "{change}");
    }
    client.send(b"gets a\r\n");
    assert!(client.line().starts_with("VALUE a 0 1 "));
    client.expect(b"1\r\nEND\r\n");
    client.send(b"me a\r\n");
    assert!(client.line().starts_with("ME a "));
    client.expect_value(b"a", b"1");
}

/// Sends a set and a get of memcached's binary protocol.
fn binary(client: &mut Client) {
    let mut set = [0; 24 + 8 + 1 + 1];
    (set[0], set[1], set[3], set[4], set[11], set[32], set[33]) = (0x80, 0x01, 1, 8, 10, b'a', b'2');
    client.send(&set);
    let head = client.take(24);
    assert_eq!(head[6..8], [0, 0x83]);
    assert_eq!(client.take(head[11].into()), b"Not supported");
    let mut get = [0; 24 + 1];
    (get[0], get[1], get[3], get[11], get[24]) = (0x80, 0x00, 1, 1, b'a');
    client.send(&get);
    let head = client.take(24);
    assert_eq!((head[7], client.take(head[11].into())), (0, b"\0\0\0\x001".to_vec()));
}

fn calls(client: &mut Client) {
    assert_eq!(ask(client, "get", "key\ta\n"), (200, "value\t1\n".into()));
    for (name, parameters) in [
        ("set", "key\ta\nvalue\t2\n"),
        ("add", "key\tb\nvalue\t2\n"),
        ("replace", "key\ta\nvalue\t2\n"),
        ("append", "key\ta\nvalue\t2\n"),
        ("increment", "key\tn\nnum\t2\n"),
        ("increment_double", "key\tn\nnum\t2\n"),
        ("cas", "key\ta\noval\t1\nnval\t2\n"),
        ("remove", "key\ta\n"),
        ("remove", "key\tmissing\n"),
        ("seize", "key\ta\n"),
        ("set_bulk", "_a\t2\n"),
        ("set_bulk", "atomic\t\n_a\t2\n"),
        ("remove_bulk", "_a\t\n"),
        ("clear", ""),
        ("vacuum", ""),
    ] {
        assert_eq!(ask(client, name, parameters), (500, PERMISSION.into()), "{name}");
    }
    assert_eq!(ask(client, "cur_jump", "CUR\t1\n").0, 200);
    for (name, parameters) in
        [("cur_set_value", "CUR\t1\nvalue\t2\n"), ("cur_remove", "CUR\t1\n"), ("cur_seize", "CUR\t1\n")]
    {
        assert_eq!(ask(client, name, parameters), (500, PERMISSION.into()), "{name}");
    }
    assert_eq!(ask(client, "cur_get", "CUR\t1\n"), (200, "key\ta\nvalue\t1\n".into()));
    assert_eq!(ask(client, "match_prefix", "prefix\t\n"), (200, "_a\t0\nnum\t1\n".into()));
    assert_eq!(ask(client, "synchronize", "").0, 200);
    assert_eq!(ask(client, "play_script", "name\tread\n"), (200, "_value\t1\n".into()));
    assert_eq!(ask(client, "play_script", "name\twrite\n"), (200, "_code\t4\n".into()));
    assert_eq!(ask(client, "play_script", "name\tbegin\n"), (200, "_begun\tfalse\n".into()));
}

fn rest(client: &mut Client) {
    client.send(b"PUT /a HTTP/1.1\r\nContent-Length: 1\r\n\r\n2");
    assert_eq!(answer(client).0, 500);
    client.send(b"DELETE /a HTTP/1.1\r\n\r\n");
    assert_eq!(answer(client).0, 500);
    client.send(b"GET /a HTTP/1.1\r\n\r\n");
    assert_eq!(answer(client), (200, b"1".to_vec()));
    client.send(&call("void", ""));
    assert_eq!(answer(client).0, 200);
}

/// Sends a set and a get of Kyoto Tycoon's binary protocol. The set must be answered by the error,
/// and the get by the record.
fn bulk(server: &Running) {
    let record = |value: &[u8]| {
        let lens = [1u32.to_be_bytes(), (value.len() as u32).to_be_bytes()].concat();
        [&[0, 0][..], &lens, &i64::MAX.to_be_bytes(), b"a", value].concat()
    };
    let mut client = server.connect();
    client.send(&[&[0xb8][..], &[0; 4], &1u32.to_be_bytes(), &record(b"2")].concat());
    assert_eq!(client.rest(), [0xbf]);
    let mut client = server.connect();
    client.send(&[&[0xba][..], &[0; 4], &1u32.to_be_bytes(), &[0, 0], &1u32.to_be_bytes(), b"a"].concat());
    assert_eq!(client.take(5), [0xba, 0, 0, 0, 1]);
}

/// If the options are refused, nothing has been created.
#[test]
fn contradictory_read_only_options_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |options: ServerOptions| options.validate().unwrap_err().to_string();
    let memory = ServerOptions {
        databases: DatabaseOptions { data: None, ..serving("mem:tree", folder.path(), "#mode=r").databases },
        ..serving("mem:tree", folder.path(), "#mode=r")
    };
    assert!(refused(memory).contains("nothing is there to be read in memory"));
    for kind in KINDS {
        assert!(refused(serving(kind, folder.path(), "#mode=rt")).contains("cannot be emptied"), "{kind}");
        let missing = Server::bind(ServerOptions {
            listen: ListenOptions { port: 0, ..serving(kind, folder.path(), "#mode=r").listen },
            ..serving(kind, folder.path(), "#mode=r")
        });
        let missing = missing.and_then(|mut server| server.load(&mut |_| ()));
        assert!(missing.is_err(), "{kind}");
        assert!(!folder.path().join(kind).exists() && !folder.path().join("data").exists(), "{kind}");
    }
}
