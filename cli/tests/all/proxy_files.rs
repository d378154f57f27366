//! The configuration files of `todana proxy`: our own and twemproxy's.

use crate::running;

use running::{TestFolder, expect};

/// A file with most keys.
const EXAMPLE: &str = r#"listen = ["127.0.0.1:11211", "unix:/run/todana.sock mode=0770"]
threads = 2
zone = "a"
[defaults]
ring = "libmemcached"
connect-timeout = "250ms"
reply-timeout = "1s"
connections = 1
failures = 3
retry = "1s"
retry-max = "10s"
eject = false
[pool.main]
servers = [
  "10.0.0.1:11211",
  "10.0.0.2:11211 weight=2",
  "10.0.0.3:11211 name=cache-3 zone=b",
]
hash-tag = "{}"
[pool.sessions]
servers = ["s1.internal", "s2.internal", "s3.internal"]
tls = { ca = "/etc/ssl/memcached.pem", server-name = "cache.internal" }
login = { user = "web", password-file = "/etc/todana/web.pw" }
[pool.new]
servers = ["n1", "n2", "n3", "n4"]
[route]
default = { warm-up = "new", from = "main" }
"session:" = { replicate = ["sessions"], copies = 2, read = "first" }
"hot:" = { near = "main", ttl = "500ms", max = "8MB" }
[route.commands]
flush_all = "refuse"
"#;

/// twemproxy's file with every key that it has.
const NUTCRACKER: &str = "\
# every key
alpha:
  listen: 127.0.0.1:22121
  hash: murmur
  distribution: modula
  hash_tag: \"{}\"
  timeout: 400
  backlog: 1024
  client_connections: 500
  tcpkeepalive: true
  reuseport: false
  redis: false
  redis_auth: 0123
  redis_db: 0
  preconnect: true
  auto_eject_hosts: true
  server_connections: 2
  server_retry_timeout: 2500
  server_failure_limit: 1
  servers:
   - 127.0.0.1:11211:1
   - cache2:11212:3 second
   - ::1:11213:1
   - /var/run/memcached.sock:2 third
be.ta:
  listen: /var/run/nutcracker.sock 0666
  timeout: 1500
  auto_eject_hosts: true
  servers: [10.0.0.1:11211:1]
gamma:
  listen: ::1:22122
  timeout: 400
  distribution: random
  servers:
  - 10.0.0.1:11211:1
";

const PRINTED: &str = r#"[pool.alpha]
listen = "127.0.0.1:22121"
conn-limit = 500
servers = [
  "127.0.0.1:11211",
  "cache2:11212 weight=3 name=second",
  "[::1]:11213",
  "unix:/var/run/memcached.sock weight=2 name=third",
]
ring = "twemproxy-modula"
hash = "murmur"
hash-tag = "{}"
connect-timeout = "400ms"
reply-timeout = "400ms"
connections = 2
preconnect = true
failures = 1
retry = "2500ms"
eject = true

[pool."be.ta"]
listen = "unix:/var/run/nutcracker.sock mode=0666"
listen-backlog = 512
servers = [
  "10.0.0.1:11211",
]
ring = "twemproxy"
connect-timeout = "1500ms"
reply-timeout = "1500ms"
failures = 2
retry = "30s"
retry-max = "30s"
eject = true

[pool.gamma]
listen = "[::1]:22122"
listen-backlog = 512
servers = [
  "10.0.0.1:11211",
]
ring = "random"
connect-timeout = "400ms"
reply-timeout = "400ms"
"#;

fn written(name: &str, text: &str) -> TestFolder {
    let folder = TestFolder::new();
    std::fs::write(folder.path(name), text).unwrap();
    folder
}

/// Returns the problems of a file.
fn problems(name: &str, text: &str) -> String {
    written(name, text).complaint(&["config", "check", name], 2)
}

#[test]
fn example_is_valid() {
    let folder = written("proxy.toml", EXAMPLE);
    assert_eq!(folder.expect(&["config", "check", "proxy.toml"], 0), "proxy.toml: ok\n");
    std::fs::write(folder.path("serve.toml"), "max-item-size = 2048\n").unwrap();
    assert_eq!(folder.expect(&["config", "check", "serve.toml"], 0), "serve.toml: ok\n");
    let said = problems("serve.toml", "[network]\nport = 0\n");
    assert!(said.contains("unknown option \"network\""), "{said}");
    let said = folder.complaint(&["proxy", "--config", "serve.toml", "--where", "k"], 2);
    assert!(said.contains("todana: serve.toml, line 1: no pool; write [pool.main]"), "{said}");
    assert!(said.contains("serve.toml, line 1: unknown key \"max-item-size\"; did you mean "), "{said}");
}

#[test]
fn keys_are_placed_by_routes_of_a_file() {
    let folder = written("proxy.toml", EXAMPLE);
    let place = |key: &str| folder.expect(&["proxy", "--config", "proxy.toml", "--where", key], 0);
    let alone = |pool: &str, servers: &str, more: &[&str]| {
        let words = [&["proxy", "--servers", servers, "--where"][..], more].concat();
        folder.expect(&words, 0).replace("pool    main", &format!("pool    {pool}"))
    };
    const MAIN: &str = "10.0.0.1,10.0.0.2 weight=2,10.0.0.3 name=cache-3 zone=b";
    let main = |key: &str| alone("main", MAIN, &[key, "--hash-tag", "{}"]);
    assert_eq!(place("{u}x"), format!("{}\n{}", alone("new", "n1,n2,n3,n4", &["{u}x"]), main("{u}x")));
    let sessions = alone("sessions", "s1.internal,s2.internal,s3.internal", &["session:1"]);
    assert_eq!(place("session:1"), format!("route   session:\n{sessions}"));
    assert_eq!(place("hot:1"), format!("route   hot:\n{}", main("hot:1")));
    let refusing = format!("{}\"a\" = \"null\"\n", EXAMPLE.split("[route.commands]").next().unwrap());
    std::fs::write(folder.path("proxy.toml"), refusing).unwrap();
    assert_eq!(place("abc"), "route   a\npool    none\n");
}

#[test]
fn each_wrong_key_is_named_with_its_line() {
    for (line, replaced, problem) in [
        (1, "lisen = 1", "unknown key \"lisen\"; did you mean \"listen\"?"),
        (1, "listen = []", "listen: must have an address"),
        (1, "listen = \"127.0.0.1:x\"", "listen: \"127.0.0.1:x\": not an address"),
        (1, "listen = \"a b\"", "listen: \"a\": unknown word \"b\""),
        (1, "listen = \"a protocol=x\"", "protocol \"x\" is unknown; known: memcached kyoto tyrant"),
        (1, "listen = \"unix:a\"", "listen: unix:a: a path must begin with /"),
        (1, "listen = \"unix:/a mode=9\"", "the mode must be octal"),
        (2, "threads = 0", "threads: must be a number from 1 to 1024, not \"0\""),
        (3, "zone = \"\"", "zone: must not be empty"),
        (3, "hot-keys = -1", "hot-keys: must be a number from 0 to 1000000, not \"-1\""),
        (3, "in-flight = 0", "in-flight: must be a number from 1 to 100000000, not \"0\""),
        (3, "drain = 5", "drain: must be a duration"),
        (3, "version = \"1.4\"", "version: must be one of own, servers, not \"1.4\""),
        (3, "show-servers = 1", "show-servers: must be true or false, not \"1\""),
        (5, "ring = \"ketama\"", "defaults: ring: \"ketama\": unknown ring; known: libmemcached "),
        (6, "connect-timeout = 250", "defaults: connect-timeout: must be a duration from 1ms to 366d"),
        (7, "reply-timeout = \"never\"", "defaults: reply-timeout: must be a duration"),
        (8, "conections = 1", "defaults: unknown key \"conections\"; did you mean \"connections\"?"),
        (9, "failures = -1", "defaults: failures: must be a number from 1 to 1000000, not \"-1\""),
        (12, "eject = \"perhaps\"", "defaults: eject: must be true or false, not \"perhaps\""),
        (12, "when-down = \"nice\"", "when-down: must be one of gentle, error, miss, moxi, not \"nice\""),
        (12, "stand-in-ttl = \"10ms\"", "stand-in-ttl: must be in seconds"),
        (12, "ping = \"0s\"", "ping: must be a duration"),
        (12, "dns = \"none\"", "dns: must be a duration"),
        (12, "retries = 101", "retries: must be a number from 0 to 100"),
        (12, "queue-timeout = 200", "queue-timeout: must be a duration"),
        (12, "servers = \"a\"", "defaults: unknown key \"servers\""),
        (16, "  \"10.0.0.2:11211:2\",", "pool main: servers: server \"10.0.0.2:11211:2\": a weight is"),
        (19, "hash-tag = \"{\"", "pool main: hash tag \"{\": must be two characters"),
        (19, "salt = \"s\"", "pool main: ring libmemcached: has no option salt"),
        (19, "retry = \"1h\"\nretry-max = \"1m\"", "pool main: retry-max must be at least retry"),
        (19, "hash_tag = \"{}\"", "pool main: unknown key \"hash_tag\"; did you mean \"hash-tag\"?"),
        (21, "servers = [\"a\", \"a\"]", "pool sessions: server a:11211: occurs twice"),
        (22, "tls = true", "pool sessions: tls: must be a table of keys"),
        (
            22,
            "tls = { cert = \"c\", ky = \"k\" }",
            "pool sessions: tls: unknown key \"ky\"; did you mean \"key\"?",
        ),
        (22, "tls = { key = \"k\" }", "pool sessions: tls: key needs cert"),
        (23, "login = { user = \"web\" }", "pool sessions: login: password-file is missing"),
        (21, "discover = \"unix:/a\"", "pool sessions: discover: must be HOST:PORT"),
        (21, "servers-file = \"absent\"", "pool sessions: servers-file: absent: cannot read it: "),
        (21, "vbuckets = \"absent\"", "pool sessions: vbuckets: absent: cannot read it: "),
        (25, "", "pool new: servers is missing"),
        (25, "servers = \"a\"\ndiscover = \"b\"", "only one of servers, discover is allowed"),
        (27, "default = \"man\"", "route default: no pool \"man\"; pools: main, new, sessions"),
        (27, "", "route: default is missing"),
        (27, "default = { warmup = \"new\" }", "route default: a route must be a pool,"),
        (27, "default = { warm-up = \"new\" }", "route default: from is missing"),
        (27, "default = { warm-up = \"new\", from = \"new\" }", "route default: from must be another pool"),
        (27, "default = { migrate = \"new\", from = \"main\", over = \"1h\" }", "start is missing"),
        (27, "default = { shadow = \"new\", share = 2, with = \"main\" }", "share: must be a share above 0"),
        (27, "default = { shadow = \"new\", share = 0.5 }", "route default: with is missing"),
        (27, "default = { limit = 0, with = \"main\" }", "route default: limit: must be a number from 1"),
        (27, "default = { ttl = \"1h\", with = \"mian\" }", "route default: no pool \"mian\""),
        (27, "default = { failover = [\"new\", \"new\"] }", "failover: pool \"new\" occurs twice"),
        (28, "\"s\" = { replicate = [\"new\"] }", "route \"s\": one pool needs copies = 2 or more"),
        (28, "\"s\" = { replicate = [\"new\", \"main\"], copies = 2 }", "copies is for a single pool"),
        (28, "\"s\" = { replicate = [\"new\"], copies = 2, red = \"first\" }", "did you mean \"read\"?"),
        (
            29,
            "\"hot:\" = { near = \"main\", ttl = \"1s\", max = \"8XB\" }",
            "route \"hot:\": max: must be a size",
        ),
        (
            31,
            "flushall = \"refuse\"",
            "route commands: unknown key \"flushall\"; did you mean \"flush_all\"?",
        ),
        (31, "flush_all = [1]", "route flush_all: must be a table of keys"),
    ] {
        let mut lines: Vec<&str> = EXAMPLE.lines().collect();
        lines[line - 1] = replaced;
        let said = problems("proxy.toml", &lines.join("\n"));
        // A problem with a table, not with one of its keys, has the line of the table.
        let headers = [(19, 13), (21, 20), (25, 24), (27, 26)];
        let header = headers.iter().find(|(key, _)| *key == line).map_or(line, |(_, header)| *header);
        let found = said.lines().find(|said| said.contains(problem));
        let found = found.unwrap_or_else(|| panic!("{replaced}: {said}"));
        let at = |line: usize| found.starts_with(&format!("todana: proxy.toml, line {line}: "));
        assert!(at(line) || at(header), "{found}");
    }
}

#[test]
fn reasons_against_a_start_are_shown() {
    let folder = written("proxy.toml", "[pool.a]\nservers = [\"a\"]\ntls = { ca = \"absent.pem\" }\n");
    let output = folder.run(&["config", "check", "proxy.toml"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "proxy.toml: ok\n");
    let said = String::from_utf8_lossy(&output.stderr);
    let start = "todana: proxy.toml: the proxy does not start on this machine: pool a: TLS to the servers: ";
    assert!(said.starts_with(start) && said.contains("absent.pem"), "{said}");
    let said = problems("proxy.toml", "[pool.a]\nservers = []\nconnections = 257\n");
    assert!(said.contains("line 2: pool a: servers: must have a server"), "{said}");
    assert!(said.contains("line 3: pool a: connections: must be a number from 1 to 256"), "{said}");
}

#[test]
fn servers_come_from_another_file() {
    let folder = written("proxy.toml", "[pool.main]\nservers-file = \"list\"\n");
    std::fs::write(folder.path("list"), "# ours\n\na\n  b weight=2\n").unwrap();
    let place = || folder.expect(&["proxy", "--config", "proxy.toml", "--where", "k"], 0);
    assert_eq!(place(), expect(&["proxy", "--servers", "a,b weight=2", "--where", "k"], 0));
    std::fs::write(folder.path("list"), "a\nb:x\n").unwrap();
    let said = folder.complaint(&["config", "check", "proxy.toml"], 2);
    let start = "todana: proxy.toml, line 2: pool main: servers-file: list, line 2: server \"b:x\": port";
    assert!(said.starts_with(start), "{said}");
    std::fs::write(folder.path("proxy.toml"), "[pool.main]\nvbuckets = \"map\"\n").unwrap();
    let map = r#"{"hashAlgorithm":"CRC","serverList":["a:11210","b:11210"],"vBucketMap":[[0],[0],[0],[1]]}"#;
    std::fs::write(folder.path("map"), map).unwrap();
    // The slot of foo is the last one.
    let printed = folder.expect(&["proxy", "--config", "proxy.toml", "--where", "foo"], 0);
    assert_eq!(printed, "pool    main\nserver  b:11210\nhash    3187\nslot    3\n");
    for (line, problem) in [
        ("ring = \"dalli\"", "line 2: pool main: vbuckets: the map replaces the ring"),
        ("eject = true", "line 1: pool main: eject: a map of vbuckets cannot leave out a server"),
    ] {
        let text = format!("[pool.main]\nvbuckets = \"map\"\n{line}\n");
        std::fs::write(folder.path("proxy.toml"), text).unwrap();
        let said = folder.complaint(&["config", "check", "proxy.toml"], 2);
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn all_problems_of_a_file_are_listed() {
    let text =
        "listen = 1\n[pool.null]\nservers = [\"a\"]\n[pool.b]\nservers = [\"b:x\",\n\"c\"]\nquue = 1\n";
    assert_eq!(
        problems("proxy.toml", text),
        "todana: proxy.toml, line 1: several pools, but no route; write [route] and default = \"POOL\"\n\
         todana: proxy.toml, line 2: pool null: the name is reserved\n\
         todana: proxy.toml, line 5: pool b: servers: server \"b:x\": port \"x\" must be a number from 1 to 65535\n\
         todana: proxy.toml, line 7: pool b: unknown key \"quue\"; did you mean \"queue\"?\n"
    );
    let syntax = problems("nutcracker.yml", "a:\n  listen: \"\n");
    assert!(syntax.starts_with("todana: nutcracker.yml, line "), "{syntax}");
}

#[test]
fn pools_with_listeners_need_no_route() {
    let text = "[pool.a]\nlisten = \":1\"\nservers = [\"a\"]\n[pool.b]\nlisten = \"127.0.0.1:2\"\nservers = [\"b\"]\n";
    assert!(problems("proxy.toml", text).contains("line 2: pool a: listen: \":1\": not an address"));
    let folder = written("proxy.toml", &text.replace("\":1\"", "1"));
    let place = folder.expect(&["proxy", "--config", "proxy.toml", "--where", "k"], 0);
    assert_eq!(
        place,
        "pool    a\nserver  a:11211\nhash    none\npoint   none\n\npool    b\nserver  b:11211\nhash    none\npoint   none\n"
    );
}

#[test]
fn options_of_serve_have_all_sources() {
    let text = "conn-limit = 7\nverbose = 1\nadmin-port = 0\nlisten = \"127.0.0.1:5\"\n\
                [pool.main]\nservers = [\"a\"]\n[route]\n\"x:\" = { near = \"main\", ttl = \"1s\" }\n";
    let folder = written("proxy.toml", text);
    let print = |words: &[&str], variables: &[(&str, &str)]| {
        let words = [&["proxy", "--config", "proxy.toml", "--print"][..], words].concat();
        let output = running::todana()
            .args(&words)
            .current_dir(folder.0.path())
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", running::text(&output.stderr));
        running::text(&output.stdout)
    };
    let rest = "\n[pool.main]\nservers = [\n  \"a:11211\",\n]\n\n[route]\ndefault = \"main\"\n\
        \"x:\" = { near = \"main\", ttl = \"1s\", max = 8388608, hot = false, coalesce = false }\n";
    let plain = "listen = [\"127.0.0.1:5\"]\nconn-limit = 7\nadmin-port = 0\nverbose = 1\n";
    assert_eq!(print(&[], &[]), format!("{plain}{rest}"));
    assert_eq!(
        print(&["-t", "3"], &[("TODANA_CONN_LIMIT", "8"), ("TODANA_LISTEN", "::1,b")]),
        format!(
            "{}{rest}",
            plain.replace("\"127.0.0.1:5\"]", "\"::1\", \"b\"]\nthreads = 3").replace('7', "8")
        )
    );
    assert_eq!(
        print(&["-s", "/run/x", "-c", "9"], &[("TODANA_CONN_LIMIT", "8")]),
        format!("{}{rest}", plain.replace("127.0.0.1:5", "unix:/run/x mode=0700").replace("= 7", "= 9"))
    );
    for (line, problem) in [
        ("conn-limit = \"x\"", "todana: proxy.toml, line 1: invalid value 'x' for '--conn-limit"),
        (
            "con-limit = 1",
            "todana: proxy.toml, line 1: unknown key \"con-limit\"; did you mean \"conn-limit\"?",
        ),
        ("memory-limit = 3", "todana: the memory limit must be at least 4 MiB"),
        ("tls-key = \"k\"", "todana: --tls-key: needs --tls-cert"),
        ("enable-sasl = true", "todana: -S: needs a file of users"),
        ("sync = 1", "unknown key \"sync\""),
    ] {
        std::fs::write(folder.path("proxy.toml"), text.replace("conn-limit = 7", line)).unwrap();
        let said = folder.complaint(&["config", "check", "proxy.toml"], 2);
        assert!(said.starts_with(problem) || said.contains(problem), "{said}");
    }
}

#[test]
fn every_key_of_twemproxy_is_translated() {
    let folder = written("nutcracker.yml", NUTCRACKER);
    assert_eq!(folder.expect(&["config", "check", "nutcracker.yml"], 0), "nutcracker.yml: ok\n");
    let printed = folder.expect(&["proxy", "--from", "nutcracker.yml", "--print"], 0);
    assert_eq!(printed, PRINTED);
    // The printed file places keys as the original one.
    std::fs::write(folder.path("proxy.toml"), printed).unwrap();
    let place = |option: &str, file: &str| folder.expect(&["proxy", option, file, "--where", "{foo}x"], 0);
    let places = |text: String| text.lines().take(6).map(String::from).collect::<Vec<_>>();
    let original = places(place("--from", "nutcracker.yml"));
    assert_eq!(original[0], "pool    alpha");
    assert_eq!(original[2], "hashed  foo");
    assert_eq!(original, places(place("--config", "proxy.toml")));
}

#[test]
fn missing_timeout_of_twemproxy_is_noted() {
    let text = "a:\n  listen: 127.0.0.1:1\n  servers:\n  - b:11211:1\n";
    let folder = written("nutcracker.yml", text);
    let output = folder.run(&["proxy", "--from", "nutcracker.yml", "--print"]);
    assert_eq!(
        running::text(&output.stderr),
        "todana: nutcracker.yml, line 1: pool a: no timeout; requests wait for a stuck server without limit\n"
    );
    assert_eq!(
        running::text(&output.stdout),
        "[pool.a]\nlisten = \"127.0.0.1:1\"\nlisten-backlog = 512\nservers = [\n  \"b:11211\",\n]\nring = \"twemproxy\"\nreply-timeout = \"none\"\n"
    );
}

#[test]
fn wrong_keys_of_twemproxy_have_their_lines() {
    for (wrong, line, problem) in [
        ("hash: md6", 5, "hash: must be one of one_at_a_time, md5, "),
        ("distribution: ring", 5, "distribution: must be one of ketama, modula, random, not \"ring\""),
        ("hash_tag: {}", 5, "hash_tag: must be a text"),
        ("hash_tag: abc", 1, "hash tag \"abc\": must be two characters"),
        ("timeout: -1", 5, "timeout: must be a number from 1 to 2147483647, not \"-1\""),
        ("backlog: x", 5, "backlog: must be a number from 1 to 2147483647, not \"x\""),
        ("client_connections: y", 5, "client_connections: must be a number from 0 to"),
        ("tcpkeepalive: yes", 5, "tcpkeepalive: must be true or false, not \"yes\""),
        ("reuseport: 1", 5, "reuseport: must be true or false, not \"1\""),
        ("redis: true", 5, "redis: true: Todana does not speak the protocol of Redis"),
        ("redis_db: a", 5, "redis_db: must be a number from 0 to"),
        ("redis_auth: [a]", 5, "redis_auth: must be a text"),
        ("preconnect: on", 5, "preconnect: must be true or false, not \"on\""),
        ("auto_eject_hosts: 0", 5, "auto_eject_hosts: must be true or false, not \"0\""),
        ("server_connections: 0", 5, "server_connections: must be a number from 1 to 1024, not \"0\""),
        ("server_retry_timeout: 0", 5, "server_retry_timeout: must be a number from 1"),
        ("server_failure_limit: 0", 5, "server_failure_limit: must be a number from 1"),
        ("auto_eject_host: true", 5, "unknown key \"auto_eject_host\"; did you mean \"auto_eject_hosts\"?"),
    ] {
        let text = format!("a:\n  listen: h:1\n  servers:\n   - b:11211:1\n  {wrong}\n");
        let said = problems("nutcracker.yml", &text);
        let start = format!("todana: nutcracker.yml, line {line}: pool a: {problem}");
        assert!(said.starts_with(&start) && said.lines().count() == 1, "{wrong}: {said}");
    }
    for (text, problem) in [
        ("a:\n  servers: [b:1:1]\n", "line 1: pool a: listen is missing"),
        ("a:\n  listen: h:1\n", "line 1: pool a: servers is missing"),
        (
            "a:\n  listen: h\n  servers: [b:1:1]\n",
            "line 2: pool a: listen: \"h\": must be HOST:PORT or /PATH",
        ),
        ("a:\n  listen: /s 9\n  servers: [b:1:1]\n", "line 2: pool a: listen: the mode must be octal"),
        ("a:\n  listen: h:1\n  servers: []\n", "line 3: pool a: servers: must have a server"),
        (
            "a:\n  listen: h:1\n  servers:\n  - b:1:1\n  - c:1\n",
            "line 5: pool a: servers: server \"c:1\": must be",
        ),
        ("a:\n  listen: h:1\n  servers: [b:1:0]\n", "line 3: pool a: servers: server \"b:1:0\": must be"),
        (
            "a:\n  listen: h:1\n  servers: [b:1:1 n m]\n",
            "line 3: pool a: servers: server \"b:1:1 n m\": must",
        ),
        ("a: 1\n", "line 1: pool a: must be a table of keys"),
        ("[a]\n", "line 1: must be a table of keys"),
    ] {
        let said = problems("nutcracker.yml", text);
        assert!(said.contains(&format!("nutcracker.yml, {problem}")), "{text}: {said}");
    }
}

#[test]
fn pool_for_redis_does_not_hide_others() {
    let text = "a:\n  listen: h:1\n  redis: true\n  servers: [b:1:1]\nc:\n  listen: h:2\n  servrs: []\n";
    let said = problems("nutcracker.yml", text);
    assert!(said.contains("line 3: pool a: redis: true: "), "{said}");
    assert!(said.contains("line 7: pool c: unknown key \"servrs\"; did you mean \"servers\"?"), "{said}");
}

#[test]
fn options_of_a_pool_conflict_with_files() {
    let folder = written("proxy.toml", EXAMPLE);
    for words in [
        &["--config", "proxy.toml", "--servers", "a", "--where", "k"][..],
        &["--config", "proxy.toml", "--ring", "dalli", "--where", "k"],
        &["--config", "proxy.toml", "--from", "x", "--where", "k"],
        &["--from", "proxy.toml", "--print", "--where", "k"],
        &["--config", "proxy.toml", "--compare", "dalli"],
    ] {
        let said = folder.complaint(&[&["proxy"], words].concat(), 2);
        assert!(said.contains("cannot be used with"), "{said}");
    }
    let said = folder.complaint(&["proxy", "--config", "absent", "--where", "k"], 2);
    assert!(said.starts_with("todana: absent: cannot read it: "), "{said}");
}

/// The page of the reference must not name keys that are gone.
#[test]
fn documented_keys_are_known() {
    let page = include_str!("../../../docs/proxy-configuration.md");
    let keys = |heading: &str| {
        let (_, section) = page.split_once(heading).unwrap();
        let rows = section.lines().take_while(|line| !line.starts_with("## "));
        let cells = rows.filter_map(|line| line.strip_prefix("| `")?.split('|').next());
        let keys: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).collect();
        let is_key = |key: &&&str| key.starts_with(|letter: char| letter.is_ascii_lowercase());
        let lines: String = keys.iter().filter(is_key).map(|key| format!("{key} = []\n")).collect();
        assert!(lines.lines().count() > 3, "{lines}");
        lines
    };
    let text = format!("{}[pool.main]\n{}", keys("\n## The proxy\n"), keys("\n## Pools\n"));
    let said = problems("proxy.toml", &text);
    assert!(said.contains("pool main: servers: ") || said.contains("only one of servers"), "{said}");
    assert!(!said.contains("unknown key"), "{said}");
}
