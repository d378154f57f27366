//! Logins in Kyoto Tycoon's protocols, by curl, which is installed on most machines.

use crate::running;

use rcgen::{CertificateParams, KeyPair};
use running::{RunningServer, TestFolder, eventually, text};
use std::fs;
use std::process::Command;

/// Returns the status and the body that curl receives, or `None` if curl is not installed.
fn curl(folder: &TestFolder, words: &[&str]) -> Option<(String, String)> {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "*", "--max-time", "60", "-w", "\n%{http_code}"]).args(words);
    let output = match command.current_dir(folder.0.path()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no curl here");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    let said = text(&output.stdout);
    let (body, status) = said.rsplit_once('\n').unwrap();
    Some((status.to_string(), body.to_string()))
}

#[test]
fn curl_logs_in_for_all_requests_and_tls() {
    let folder = TestFolder::new();
    let users = folder.path("users");
    fs::write(&users, todana_server::password_line("alice", b"se:cret").unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap().self_signed(&key).unwrap();
    fs::write(folder.path("both.pem"), certificate.pem() + &key.serialize_pem()).unwrap();
    fs::write(folder.path("body"), "v".repeat(100_000)).unwrap();

    let logins = ["-S", "--password-file", &users];
    for (tls, scheme, server_words) in [
        (&[][..], "http://", logins.to_vec()),
        (
            &["--cacert", "both.pem"][..],
            "https://",
            [&logins[..], &["--tls-cert", &folder.path("both.pem")]].concat(),
        ),
    ] {
        let server = RunningServer::start(&server_words);
        let host = server.address.trim_start_matches("todanas://").to_string();
        let ask = |words: &[&str]| curl(&folder, &[tls, words].concat());
        let url = |path: &str| format!("{scheme}{host}/{path}");
        let Some((status, body)) = ask(&["-T", "body", &url("k")]) else { return };
        assert_eq!((status.as_str(), body.starts_with("401 ")), ("401", true), "{body}");
        let put = ask(&["-u", "alice:se:cret", "-T", "body", &url("k")]).unwrap();
        assert_eq!(put.0, "201");
        // Two requests on one connection have a wrong and a right password.
        let (first, second) =
            (["-u", "alice:wrong", &url("k"), "--next", "-sS"], ["-u", "alice:se:cret", &url("k")]);
        let found = ask(&[&first[..], tls, &second].concat());
        // curl prints only the status of the first request.
        assert_eq!(found.unwrap().0, format!("401{}", "v".repeat(100_000)));
        // The login is a part of the URL of a procedure call.
        let of_alice = format!("{scheme}alice:se%3Acret@{host}/rpc/set?key=x&value=y");
        assert_eq!(ask(&[&of_alice]).unwrap().0, "200");
        let got = ask(&["-u", "alice:se:cret", &url("rpc/get?key=x")]).unwrap();
        assert_eq!(got, ("200".to_string(), "value\ty\n".to_string()));

        fs::rename(&users, folder.path("kept")).unwrap();
        fs::write(&users, "bob:plain\n").unwrap();
        server.signal("HUP");
        eventually("alice is out", || {
            ask(&["-u", "alice:se:cret", &url("rpc/get?key=x")]).unwrap().0 == "401"
        });
        assert_eq!(ask(&["-u", "bob:plain", &url("rpc/get?key=x")]).unwrap().0, "200");
        fs::rename(folder.path("kept"), &users).unwrap();
    }
}
