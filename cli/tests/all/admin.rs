//! The monitoring pages of the program.

use crate::running;

use running::{RunningServer, text, todana};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

/// Returns the reply to a request for the page `place`, which has the form `http://host:port/path`.
fn get(place: &str) -> String {
    let (host, path) = place.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.write_all(format!("GET /{path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn banner_shows_the_admin_page() {
    let server = RunningServer::start(&[]);
    let (_, place) = server.banner[0].trim_end().split_once(", admin page: ").expect("a place");
    let metrics = format!("{place}metrics");
    assert!(get(&metrics).contains("\nmemcached_up 1\n"));
    server.expect(&["set", "a", "1"], 0);
    assert!(get(&metrics).contains("\nmemcached_commands_total{command=\"set\",status=\"hit\"} 1\n"));
}

#[test]
fn pages_are_off_for_private_sockets() {
    let off = RunningServer::start(&["--admin-port", "0"]);
    assert!(!off.banner[0].contains("admin page"), "{:?}", off.banner);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket").display().to_string();
    let private = RunningServer::start(&["-s", &socket]);
    assert!(!private.banner[0].contains("admin page"), "{:?}", private.banner);
}

#[test]
fn occupied_admin_port_is_refused_by_name() {
    let first = RunningServer::start(&[]);
    let (_, place) = first.banner[0].split_once(", admin page: http://127.0.0.1:").unwrap();
    let port = place.split('/').next().unwrap();
    let second = todana().args(["serve", "-p", "-1", "--admin-port", port]).output().unwrap();
    assert_eq!(second.status.code(), Some(3));
    let said = text(&second.stderr);
    assert!(said.contains("--admin-port") && said.contains(&format!("127.0.0.1:{port}")), "{said}");
}

#[test]
fn config_file_can_enable_pages() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("todana.toml");
    std::fs::write(&file, "admin-port = -1\nadmin-listen = [\"127.0.0.2\"]\n").unwrap();
    let server = RunningServer::start(&["--config", &file.display().to_string()]);
    let (_, place) = server.banner[0].trim_end().split_once(", admin page: ").expect("a place");
    assert!(place.starts_with("http://127.0.0.2:"), "{place}");
    assert!(get(&format!("{place}healthz")).ends_with("\r\n\r\nok\n"));
}

#[test]
fn memcached_has_pages_only_by_environment() {
    let start = |port: Option<&str>| {
        let mut command = todana();
        command.args(["as", "memcached", "-v", "-p", "-1", "-l", "127.0.0.1"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        if let Some(port) = port {
            command.env("TODANA_ADMIN_PORT", port);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut asked = start(Some("-1"));
    let lines = BufReader::new(asked.stderr.take().unwrap()).lines();
    let place =
        lines.map_while(Result::ok).find_map(|line| line.find("http://").map(|at| line[at..].to_string()));
    let answer = place.map(|place| get(&format!("{}readyz", place.trim_end())));
    let _ = asked.kill();
    let _ = asked.wait();
    assert!(answer.as_ref().is_some_and(|answer| answer.ends_with("ready\n")), "{answer:?}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = start(Some(&port)).wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(71));
    let said = text(&refused.stderr);
    assert!(said.contains("admin pages: cannot be served") && !said.contains("failed to listen"), "{said}");

    let wrong = start(Some("http")).wait_with_output().unwrap();
    assert_eq!(wrong.status.code(), Some(64));
    assert!(text(&wrong.stderr).contains("TODANA_ADMIN_PORT"), "{}", text(&wrong.stderr));
}
