//! Procedures in Lua, called over both of Kyoto Tycoon's protocols that know them.

mod kyoto_client;
mod running;

use kyoto_client::{ask, kyoto, named};
use running::Running;
use todana_server::Options;

/// A server with a script, and the folder where that lies.
fn scripted(text: &str, database: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.lua");
    std::fs::write(&path, text).unwrap();
    let options = Options { kyoto_script: Some(path), database: named(database), ..kyoto() };
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
        // What it has left open is over, and nobody waits for it.
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

#[test]
fn without_a_script_there_are_no_procedures() {
    let server = Running::start(kyoto());
    assert_eq!(
        ask(&mut server.connect(), "play_script", "name\techo\n"),
        (501, "ERROR\tthe scripting extention is disabled\n".into())
    );
}

#[test]
fn the_binary_protocol_gives_bare_names_and_keeps_the_connection() {
    let (server, _folder) = scripted(TEXT, ":");
    let mut client = server.connect();
    // `echo` with a=1 and bb=22.
    client.send(b"\xB4\0\0\0\0\0\0\0\x04\0\0\0\x02echo\0\0\0\x01\0\0\0\x01a1\0\0\0\x02\0\0\0\x02bb22");
    client.expect(b"\xB4\0\0\0\x02\0\0\0\x01\0\0\0\x01a1\0\0\0\x02\0\0\0\x02bb22");
    client.send(b"\xB4\0\0\0\0\0\0\0\x06\0\0\0\0nosuch");
    client.expect(b"\xBF");
    // Silent, and then one whose name calls do not take.
    client.send(b"\xB4\0\0\0\x01\0\0\0\x04\0\0\0\0fail");
    client.send(b"\xB4\0\0\0\0\0\0\0\x0B\0\0\0\0under_score");
    client.expect(b"\xB4\0\0\0\0");
}

#[test]
fn a_script_knows_its_databases_by_name_and_kind() {
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
    let server = Running::start(Options { kyoto_script: path, kyoto_files: files, ..kyoto() });
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "play_script", "name\ttell\n").0, 500, "there is no such database");
    std::fs::write(folder.path().join("script.lua"), text.replace("'%'", "1")).unwrap();
    (server.reload)();
    assert!(ask(&mut client, "play_script", "name\ttell\n").1.starts_with("_dumped\ttrue\n"));
    assert_eq!(std::fs::read(folder.path().join("s")).unwrap(), b"KCSS\n\0\xFF");
}
