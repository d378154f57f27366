//! Tests procedures in Lua, which are called through both protocols of Kyoto Tycoon that support
//! them.

use crate::kyoto_client;
use crate::running;

use kyoto_client::{answer, ask, call, kyoto, named};
use running::Running;
use todana_server::{DatabaseOptions, KyotoOptions, ProtocolOptions, ServerOptions};

/// Starts a server with a script. Returns it with the folder of the script.
fn scripted(text: &str, database: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.lua");
    std::fs::write(&path, text).unwrap();
    let options = ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { script: Some(path), ..kyoto().protocols.kyoto },
            ..kyoto().protocols
        },
        databases: DatabaseOptions { database: named(database), ..kyoto().databases },
        ..kyoto()
    };
    (Running::start(options), folder)
}

const TEXT: &str = "kt = __kyototycoon__
function echo(input, output) for name, value in pairs(input) do output[name] = value end return 0 end
function store(input) return kt.db:set(input.key, input.value) and 0 or 5 end
function under_score() return 0 end
function code(input) return kt.atoi(input.code) end
function fail() kt.db:begin_transaction() kt.db:set('half', 'done') error('no') end";

#[test]
fn a_call_runs_a_procedure_of_the_script() {
    for database in [":", "%"] {
        let (server, _folder) = scripted(TEXT, database);
        let mut client = server.connect();
        assert_eq!(
            ask(&mut client, "play_script", "name\techo\n_a\t1\n_bb\t22\nb\tleft out\n"),
            (200, "_a\t1\n_bb\t22\n".into())
        );
        assert_eq!(
            ask(&mut client, "play_script", "name\tstore\n_key\tk\n_value\tv\n"),
            (200, String::new())
        );
        assert_eq!(ask(&mut client, "get", "key\tk\n"), (200, "value\tv\n".into()));
        for (code, status) in [("0", 200), ("1", 501), ("2", 400), ("3", 450), ("5", 500), ("77", 500)] {
            assert_eq!(ask(&mut client, "play_script", &format!("name\tcode\n_code\t{code}\n")).0, status);
        }
        assert_eq!(
            ask(&mut client, "play_script", "name\tfail\n"),
            (500, "ERROR\tthe scripting procedure failed\n".into())
        );
        // The transaction that the script left open has been aborted, so no writer waits for it.
        assert_eq!(ask(&mut client, "set", "key\tk\nvalue\tw\n").0, 200);
        assert_eq!(ask(&mut client, "get", "key\thalf\n").0, 450);
        assert_eq!(
            ask(&mut client, "play_script", "name\tnosuch\n"),
            (501, "ERROR\tno such scripting procedure\n".into())
        );
        for name in ["", "under_score", "a b"] {
            assert_eq!(ask(&mut client, "play_script", &format!("name\t{name}\n")).0, 400);
        }
    }
}

/// In an earlier version, the stack of a script's thread overflowed before Lua refused another
/// nested call, and the server process ended.
#[test]
fn endless_recursion_through_a_callback_fails() {
    let text = "function nest()
          local function f() return (('x'):gsub('x', function() return f() end)) end
          return f()
        end
        function fine() return 0 end";
    let (server, _folder) = scripted(text, ":");
    let mut client = server.connect();
    for _ in 0..2 {
        assert_eq!(
            ask(&mut client, "play_script", "name\tnest\n"),
            (500, "ERROR\tthe scripting procedure failed\n".into())
        );
        assert_eq!(ask(&mut client, "play_script", "name\tfine\n"), (200, String::new()));
    }
}

/// In an earlier version, a script blocked its worker, and all connections of that worker, until
/// the script ended.
#[test]
fn script_does_not_stop_other_connections() {
    let text = "kt = __kyototycoon__
        function wait() repeat kt.sleep(0.001) until kt.db:get('go') return 0 end
        function last(_, output) output.last = kt.db:get('last') return 0 end";
    let (server, _folder) = scripted(text, "%");
    let (mut client, mut binary, mut other) = (server.connect(), server.connect(), server.connect());
    client.send(&[call("play_script", "name\twait\n"), call("set", "key\tlast\nvalue\tv\n")].concat());
    binary.send(b"\xB4\0\0\0\0\0\0\0\x04\0\0\0\0wait");
    // The one worker answers other connections, but does nothing on the connection that waits.
    assert_eq!(ask(&mut other, "get", "key\tlast\n").0, 450);
    assert_eq!(ask(&mut other, "set", "key\tgo\nvalue\tv\n").0, 200);
    assert_eq!(answer(&mut client), (200, vec![]));
    assert_eq!(answer(&mut client), (200, vec![]));
    binary.expect(b"\xB4\0\0\0\0");
    assert_eq!(ask(&mut other, "play_script", "name\tlast\n"), (200, "_last\tv\n".into()));
}

/// In an earlier version, one such pattern per worker hung the server, and a stop took half a
/// minute.
#[test]
fn stop_ends_scripts_and_answers() {
    let text = "function search() return ('a'):rep(3000):find(('a-'):rep(8) .. 'b') end function quick() return 0 end";
    let (server, _folder) = scripted(text, ":");
    let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(&call("play_script", "name\tsearch\n"));
    }
    let mut other = server.connect();
    assert_eq!(ask(&mut other, "void", "").0, 200);
    server.handle.stop();
    for client in &mut clients {
        assert_eq!(answer(client).0, 500);
    }
}

#[test]
fn limits_of_a_script_are_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.lua");
    std::fs::write(
        &path,
        "function eat() return #('x'):rep(3e6) > 0 and 0 or 5 end function spin() while true do end end",
    )
    .unwrap();
    let bounded = |memory_mib: usize| ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions {
                script: Some(path.clone()),
                script_time_max: std::time::Duration::from_millis(50),
                script_memory_max: memory_mib << 20,
                ..kyoto().protocols.kyoto
            },
            ..kyoto().protocols
        },
        ..kyoto()
    };
    for (memory_mib, status) in [(2, 500), (16, 200)] {
        let server = Running::start(bounded(memory_mib));
        assert_eq!(ask(&mut server.connect(), "play_script", "name\teat\n").0, status);
        assert_eq!(ask(&mut server.connect(), "play_script", "name\tspin\n").0, 500);
    }
}

#[test]
fn transaction_over_several_calls_is_refused() {
    let text = "kt = __kyototycoon__
        function begin() return kt.db:begin_transaction() and 0 or 5 end
        function abort() return kt.db:end_transaction(false) and 0 or 5 end";
    let (server, _folder) = scripted(text, "%");
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "play_script", "name\tbegin\n").0, 500);
    assert_eq!(ask(&mut client, "set", "key\tk\nvalue\tv\n").0, 200);
    assert_eq!(ask(&mut client, "play_script", "name\tabort\n").0, 500);
}

#[test]
fn server_without_script_has_no_procedures() {
    let server = Running::start(kyoto());
    assert_eq!(
        ask(&mut server.connect(), "play_script", "name\techo\n"),
        (501, "ERROR\tthe scripting extention is disabled\n".into())
    );
}

#[test]
fn binary_script_calls_keep_the_connection() {
    let (server, _folder) = scripted(TEXT, ":");
    let mut client = server.connect();
    // `echo` with a=1 and bb=22.
    client.send(b"\xB4\0\0\0\0\0\0\0\x04\0\0\0\x02echo\0\0\0\x01\0\0\0\x01a1\0\0\0\x02\0\0\0\x02bb22");
    client.expect(b"\xB4\0\0\0\x02\0\0\0\x01\0\0\0\x01a1\0\0\0\x02\0\0\0\x02bb22");
    client.send(b"\xB4\0\0\0\0\0\0\0\x06\0\0\0\0nosuch");
    client.expect(b"\xBF");
    // A silent call, and then one with a name that calls do not accept.
    client.send(b"\xB4\0\0\0\x01\0\0\0\x04\0\0\0\0fail");
    client.send(b"\xB4\0\0\0\0\0\0\0\x0B\0\0\0\0under_score");
    client.expect(b"\xB4\0\0\0\0");
}

#[test]
fn script_knows_database_names_and_kinds() {
    let text = "kt = __kyototycoon__
        function tell(_, output)
          local status = kt.dbs['%']:status()
          output.kind = status.type .. ' ' .. status.realtype .. ' ' .. status.path .. ' ' .. status.count
          output.dumped = tostring(kt.db:dump_snapshot('s'))
          return 0
        end";
    let (server, folder) = scripted(text, "%");
    let mut client = server.connect();
    let told = "_dumped\tfalse\n_kind\t33 33 % 0\n";
    assert_eq!(ask(&mut client, "play_script", "name\ttell\n"), (200, told.into()));
    drop((server, client));
    let path = Some(folder.path().join("script.lua"));
    let files = Some(folder.path().to_owned());
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { script: path, files, ..kyoto().protocols.kyoto },
            ..kyoto().protocols
        },
        ..kyoto()
    });
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "play_script", "name\ttell\n").0, 500, "there is no such database");
    std::fs::write(folder.path().join("script.lua"), text.replace("'%'", "1")).unwrap();
    (server.reload)();
    assert!(ask(&mut client, "play_script", "name\ttell\n").1.starts_with("_dumped\ttrue\n"));
    assert_eq!(std::fs::read(folder.path().join("s")).unwrap(), b"KCSS\n\0\xFF");
}
