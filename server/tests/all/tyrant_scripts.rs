//! Functions of the server's script, called by Tokyo Tyrant's clients and by the server itself.

use crate::running;
use crate::tyrant_client;

use running::{Client, Running, eventually};
use std::time::Duration;
use todana_protocol::tyrant::{FieldBuffer, TyrantPutMode, TyrantRequest};
use todana_server::{DatabaseName, PeriodicCall, ProtocolOptions, ScriptText, ServerOptions, TyrantOptions};
use tyrant_client::{all_of_tyrant, ask};

const SCRIPT: &str = "
function _begin() _put('begun', 1) end
function _end() _put('ended', 1) end
function tick() _addint('ticks', 1) end
function echo(key, value) return key .. ':' .. value end
function empty() return '' end
function put(key, value) return _put(key, value) and 'ok' end
function fail() error('failed') end
function count(key, delta)
   local number = (tonumber(_get(key)) or 0) + delta
   _put(key, number)
   return number
end
function list(key) return table.concat(_misc('getlist', _split(key, ' ')), ' ') end
function walk()
   local keys = {}
   _iterinit()
   local key = _iternext()
   while key do keys[#keys + 1] = key key = _iternext() end
   return #keys
end
function search(pattern) return #_misc('regex', pattern) / 2 end
";

fn scripted(periodic: Vec<PeriodicCall>) -> ServerOptions {
    let options = all_of_tyrant("");
    let script = Some(ScriptText::Inline(SCRIPT.into()));
    let tyrant = TyrantOptions { script, periodic, ..options.protocols.tyrant.clone() };
    ServerOptions { protocols: ProtocolOptions { tyrant, ..options.protocols }, ..options }
}

fn call(client: &mut Client, name: &str, key: &str, value: &str, options: u32) -> Option<String> {
    let mut request = Vec::new();
    let (name, key, value) = (name.as_bytes(), key.as_bytes(), value.as_bytes());
    TyrantRequest::Ext { name, options, key, value }.encode(&mut request);
    client.send(&request);
    (client.take(1) == [0]).then(|| {
        let len = u32::from_be_bytes(client.take(4).try_into().unwrap());
        String::from_utf8(client.take(len as usize)).unwrap()
    })
}

/// The last vectors of the group about administration.
#[test]
fn functions_are_answered_byte_for_byte() {
    let server = Running::start(scripted(Vec::new()));
    let mut client = server.connect();
    let hex = tyrant_client::hex;
    client.send(&hex("c868000000040000000000000003000000036563686f6b657976616c"));
    client.expect(&hex("00000000076b65793a76616c"));
    client.send(&hex("c868000000040000000000000001000000016563686e6b76"));
    client.expect(&[1]);
}

#[test]
fn failures_are_answered_without_a_result() {
    let server = Running::start(scripted(Vec::new()));
    let client = &mut server.connect();
    assert_eq!(call(client, "echo", "a", "b", 0).as_deref(), Some("a:b"));
    assert_eq!(call(client, "empty", "", "", 0).as_deref(), Some(""));
    for name in ["missing", "fail", "_put", "_begin", "print", ""] {
        assert_eq!(call(client, name, "k", "v", 0), None, "{name}");
    }
    assert_eq!(call(client, "put", "k", "v", 0).as_deref(), Some("ok"));
    // Requests after a call are answered after it.
    let mut requests = Vec::new();
    TyrantRequest::Ext { name: b"put", options: 0, key: b"k", value: b"w" }.encode(&mut requests);
    TyrantRequest::Get { key: b"k" }.encode(&mut requests);
    client.send(&requests);
    client.expect(b"\0\0\0\0\x02ok\0\0\0\0\x01w");
}

#[test]
fn functions_are_called_over_http() {
    let server = Running::start(scripted(Vec::new()));
    let client = &mut server.connect();
    client.send(b"POST /key HTTP/1.1\r\nX-TT-XNAME: echo\r\nContent-Length: 3\r\n\r\nval");
    client.expect(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 7\r\n\r\nkey:val",
    );
    client.send(b"POST /key HTTP/1.0\r\nX-TT-XNAME: missing\r\n\r\n");
    assert!(client.rest().starts_with(b"HTTP/1.1 500 Internal Server Error\r\n"));
}

#[test]
fn calls_on_one_key_exclude_each_other() {
    for options in [1, 2] {
        let server = Running::start(scripted(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut client = server.connect();
                scope.spawn(move || {
                    let client = &mut client;
                    (0..100).for_each(|_| drop(call(client, "count", "n", "1", options).unwrap()));
                });
            }
        });
        assert_eq!(call(&mut server.connect(), "count", "n", "0", 0).as_deref(), Some("300"));
    }
}

#[test]
fn scripts_reach_functions_of_the_server() {
    let server = Running::start(scripted(Vec::new()));
    let client = &mut server.connect();
    let arguments: FieldBuffer = ["a", "1", "b", "2", "c", "3"].iter().map(|word| word.as_bytes()).collect();
    let request = TyrantRequest::Misc { name: b"putlist", options: 0, arguments: arguments.list() };
    ask(client, &request, b"\0\0\0\0\0");
    assert_eq!(call(client, "list", "a missing c", "", 0).as_deref(), Some("a 1 c 3"));
    // The record of `_begin` is one of them.
    assert_eq!(call(client, "walk", "", "", 0).as_deref(), Some("4"));
    assert_eq!(call(client, "search", "^[ab]$", "", 0).as_deref(), Some("2"));
}

/// memcached's `incr` and `append` changed a record between the steps of a call that had locked it.
#[test]
fn call_excludes_text_commands_on_its_key() {
    let script = "function change(key)
            local before = _get(key)
            _put('begun', '0')
            while not _get('go') do end
            _put(key, before .. '0')
            return 'done'
         end";
    let long = "9".repeat(2_000_000);
    for (command, reply, value) in [
        ("incr n 5\r\n".to_owned(), "15\r\n", "15"),
        ("append n 0 0 1\r\n7\r\n".to_owned(), "STORED\r\n", "107"),
        // This value is received separately.
        (format!("replace n 0 0 {}\r\n{long}\r\n", long.len()), "STORED\r\n", long.as_str()),
    ] {
        let mut options = scripted(Vec::new());
        options.protocols.tyrant.script = Some(ScriptText::Inline(script.into()));
        options.protocols.tyrant.script_time_max = Duration::from_secs(60);
        options.limits.item_size_max = 4 << 20;
        let server = Running::start(options);
        let [mut client, mut other, mut waiting] = [(); 3].map(|()| server.connect());
        client.set(b"n", b"1");
        let mut request = Vec::new();
        TyrantRequest::Ext { name: b"change", options: 1, key: b"n", value: b"" }.encode(&mut request);
        client.send(&request);
        eventually("the call begins", || {
            other.send(b"incr begun 1\r\n");
            other.line() == "1\r\n"
        });
        // Requests before and after the one that waits are answered in order.
        waiting.send(format!("get none\r\n{command}get n\r\n").as_bytes());
        waiting.expect(b"END\r\n");
        // A put does not lock.
        other.set(b"n", b"2");
        other.set(b"go", b"");
        client.expect(b"\0\0\0\0\x04done");
        waiting.expect(reply.as_bytes());
        waiting.expect(format!("VALUE n 0 {}\r\n{value}\r\nEND\r\n", value.len()).as_bytes());
    }
}

#[test]
fn vanish_needs_the_permission_to_flush() {
    for is_allowed in [true, false] {
        let mut options = scripted(Vec::new());
        let script = "function f() return tostring(_vanish()) .. tostring(_misc('vanish')):sub(1, 3) end";
        options.protocols.tyrant.script = Some(ScriptText::Inline(script.into()));
        options.limits.flush_allowed = is_allowed;
        let server = Running::start(options);
        let client = &mut server.connect();
        client.set(b"k", b"v");
        let outcome = if is_allowed { "truetab" } else { "falsenil" };
        assert_eq!(call(client, "f", "", "", 0).as_deref(), Some(outcome));
        ask(client, &TyrantRequest::VSiz { key: b"k" }, if is_allowed { &[1] } else { &[0, 0, 0, 0, 1] });
    }
}

/// The functions on records worked on the stored bytes. On a table `_put("", v)` and `_out("")`
/// destroyed the definitions of the indexes, and on a fixed database `_put` refused long values.
#[test]
fn functions_on_tables_and_numbers_act_as_commands() {
    let script = "function rows()
            _misc('put', '7', 'age', '40')
            _misc('setindex', 'age', 'DECIMAL')
            local facts = {_rnum(), _out(''), _get(''), _vsiz(''), _putkeep('7', 'x\\0y'),
               _putcat('7', 'age\\0001\\0name\\0zed'), _get('7'), _put('', 'a\\0b'), _get('1'),
               _addint('7', 3), _adddouble('7', 0.5), table.concat(_fwmkeys(''), ',')}
            _foreach(function(key) facts[#facts + 1] = key return true end)
            _mapreduce(function(key) facts[#facts + 1] = key return true end, function() return true end)
            facts[#facts + 1] = #_misc('search', 'cond\\0age\\0NUMEQ\\00040', 'hint')
            for place = 1, 17 do facts[place] = tostring(facts[place]) end
            return (table.concat(facts, ' '):gsub('%z', '|'))
         end
         function numbers()
            local facts = {_put('7', 'abcdef'), _get('7'), _putcat('8', 'x'), _putcat('8', 'abcdef'), _get('8'),
               _rnum(), table.concat(_fwmkeys('[1,7]'), ',')}
            for place = 1, #facts do facts[place] = tostring(facts[place]) end
            return table.concat(facts, ' ')
         end";
    let serve = |name: &str| {
        let mut options = scripted(Vec::new());
        options.protocols.tyrant.script = Some(ScriptText::Inline(script.into()));
        options.databases.database = Some(DatabaseName::parse(name).unwrap());
        Running::start(options)
    };
    let server = serve("mem:table");
    let facts = call(&mut server.connect(), "rows", "", "", 0).unwrap();
    assert_eq!(facts, "1 false nil -1 false true age|40|name|zed true a|b 3 3.5 1,7 1 7 1 7 2");
    let server = serve("mem:fixed#width=4");
    let facts = call(&mut server.connect(), "numbers", "", "", 0).unwrap();
    assert_eq!(facts, "true abcd true true xabc 2 7");
}

#[test]
fn server_calls_periodic_functions() {
    let tick = PeriodicCall { name: "tick".into(), interval: Duration::from_millis(1) };
    let server = Running::start(scripted(vec![tick]));
    let client = &mut server.connect();
    ask(client, &TyrantRequest::Get { key: b"begun" }, b"\0\0\0\0\x011");
    eventually("three ticks", || {
        let mut request = Vec::new();
        TyrantRequest::AddInt { key: b"ticks", delta: 0 }.encode(&mut request);
        client.send(&request);
        u64::from_be_bytes([&[0; 3][..], &client.take(5)].concat().try_into().unwrap()) >= 3
    });
}

#[test]
fn program_that_is_not_lua_is_refused() {
    let options = all_of_tyrant("");
    let script = Some(ScriptText::Inline("function (".into()));
    let tyrant = TyrantOptions { script, ..options.protocols.tyrant.clone() };
    let options = ServerOptions { protocols: ProtocolOptions { tyrant, ..options.protocols }, ..options };
    let error = todana_server::Server::bind(options).err().unwrap().to_string();
    assert!(error.contains("-ext:1:"), "{error}");
}

#[test]
fn expiry_example_removes_rows_in_time() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/lua/tyrant/expiry.lua");
    let expire = PeriodicCall { name: "expire".into(), interval: Duration::from_millis(1) };
    let mut options = scripted(vec![expire]);
    options.protocols.tyrant.script = Some(ScriptText::File(path.into()));
    options.databases.database = Some(DatabaseName::parse("mem:table").unwrap());
    let server = Running::start(options);
    let client = &mut server.connect();
    let put = TyrantRequest::Put { mode: TyrantPutMode::Put, key: b"stays", value: b"name\0bob" };
    ask(client, &put, &[0]);
    assert_eq!(call(client, "put_for", "later", "1000 name cid", 0).as_deref(), Some("ok"));
    assert_eq!(call(client, "put_for", "now", "0 name ann", 0).as_deref(), Some("ok"));
    eventually("the removal of a row", || {
        let mut request = Vec::new();
        TyrantRequest::RNum.encode(&mut request);
        client.send(&request);
        client.take(9) == [0, 0, 0, 0, 0, 0, 0, 0, 2]
    });
    ask(client, &TyrantRequest::VSiz { key: b"now" }, &[1]);
    ask(client, &TyrantRequest::Get { key: b"stays" }, b"\0\0\0\0\x08name\0bob");
}
