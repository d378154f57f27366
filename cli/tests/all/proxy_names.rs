//! The proxy under the names of other proxies: `moxi` and `nutcracker`.

use crate::running;

use running::{RunningServer, TestFolder, eventually, expect, run, stop, text, todana};
use std::io::Read;
use std::process::{Child, Stdio};

/// Starts a program of another name in a folder.
fn started(folder: &TestFolder, words: &[&str]) -> Child {
    todana()
        .arg("as")
        .args(words)
        .current_dir(folder.0.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn ended(mut child: Child) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Runs a command line that must fail with exit code 1. Returns its standard error.
fn complaint(words: &[&str]) -> String {
    let output = run(words);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{words:?}");
    text(&output.stderr)
}

#[test]
fn moxi_serves_the_servers_of_a_cluster() {
    let servers = [(); 2].map(|()| RunningServer::start(&[]));
    let folder = TestFolder::new();
    let (socket, pid_file) = (folder.path("moxi.sock"), folder.path("pid"));
    let list = servers.each_ref().map(|server| server.address.clone()).join(",\n ");
    std::fs::write(folder.path("cluster"), format!("11211 = {list}:2\n")).unwrap();
    let behavior = "downstream_conn_max=4,cycle=200,mcs_opts=distribution:ketama";
    let words =
        ["moxi", "-u", "root", "-z", "./cluster", "-Z", behavior, "-s", &socket, "-P", &pid_file, "-t", "1"];
    let moxi = started(&folder, &words);
    eventually("the proxy answers", || {
        run(&["set", "k", "v", "-S", &format!("unix:{socket}")]).status.success()
    });
    assert_eq!(expect(&["get", "k", "-S", &format!("unix:{socket}")], 0).trim_end(), "v");
    let holders = servers.iter().filter(|server| server.run(&["get", "k"]).status.success());
    assert_eq!(holders.count(), 1);
    // Without -d, moxi writes no pid file.
    assert!(!std::path::Path::new(&pid_file).exists());
    ended(moxi);
    servers.into_iter().for_each(stop);
}

#[test]
fn refusals_of_moxi_are_one_line() {
    for (words, problem) in [
        (&[][..], "moxi: need cluster configuration\n"),
        (&["-z", ""], "moxi: need cluster configuration\n"),
        (&["http://a:8091/pools"], "REST streams of Couchbase are not supported"),
        (&["-z", "url=http://a:8091/pools"], "REST streams of Couchbase are not supported"),
        (&["-z", "u@a:p"], "XMPP streams of Couchbase are not supported"),
        (&["-z", "apikey=u@a:p"], "XMPP streams of Couchbase are not supported"),
        (
            &["-z", "1=a", "-p", "11211"],
            "-p: moxi's half that is a memcached is not included; use todana serve",
        ),
        (&["-z", "1=a", "-X"], "-X: servers that each request names are not supported"),
        (&["-z", "1=a", "-B", "x"], "-B: must be auto, ascii or binary, not \"x\""),
        (&["-z", "1=a", "-t", "0"], "-t: must be greater than 0"),
        (&["-z", "1=a", "-Z", "optimize_set=a"], "-Z optimize_set: not supported"),
        (&["-z", "1=a", "-Z", "mcs_opts=x"], "-Z mcs_opts: must be distribution:ketama-weighted"),
        (&["-z", "1=a", "-Z", "protocol=x"], "-Z protocol: must be ascii or binary, not \"x\""),
        (&["-z", "1=a", "-Z", "timeout=x"], "-Z timeout: must be a number, not \"x\""),
        (&["-z", "/absent"], "/absent: cannot read it: "),
        (&["-z", "1=a;1=b"], "two clusters have the port 1"),
    ] {
        let said = complaint(&[&["as", "moxi"], words].concat());
        assert!(said.starts_with("moxi: ") && said.contains(problem), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let said = complaint(&["as", "moxi", "-Q"]);
    assert_eq!(said, "moxi: invalid option -- 'Q'\nIllegal argument \"?\"\n");
    let said = complaint(&[
        "as",
        "moxi",
        "-z",
        "1=a",
        "-Z",
        "colour=1,bucket=b",
        "-U",
        "5",
        "-s",
        "/absent/s",
        "-u",
        "root",
    ]);
    assert!(said.contains("moxi: -Z: unknown key \"colour\", which is ignored\n"), "{said}");
    assert!(said.contains("moxi: -U has no effect: there is no UDP\n"), "{said}");
    assert!(expect(&["as", "moxi", "-h"], 0).contains("-z LPORT=HOST"));
    assert!(expect(&["as", "moxi", "-i"], 0).contains("Apache License"));
}

#[test]
fn nutcracker_serves_its_file() {
    let server = RunningServer::start(&[]);
    let folder = TestFolder::new();
    let (socket, log, pid_file) = (folder.path("n.sock"), folder.path("log"), folder.path("pid"));
    let file =
        format!("a:\n  listen: {socket} 0770\n  timeout: 400\n  servers:\n   - {}:1\n", server.address);
    std::fs::write(folder.path("n.yml"), file).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let words = ["nutcracker", "-c", "n.yml", "-o", &log, "-p", &pid_file, "-m", "512", "-a", "127.0.0.1"];
    let proxy = started(&folder, &[&words[..], &["-s", &port, "-i", "1000"]].concat());
    eventually("the proxy answers", || {
        run(&["set", "k", "v", "-S", &format!("unix:{socket}")]).status.success()
    });
    assert_eq!(server.expect(&["get", "k"], 0).trim_end(), "v");
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap().trim_end(), proxy.id().to_string());
    assert!(std::fs::read_to_string(&log).unwrap().contains("listening on "));
    let mut statistics = String::new();
    let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.read_to_string(&mut statistics).unwrap();
    assert!(statistics.starts_with("{\"service\":\"nutcracker\", "), "{statistics}");
    assert!(statistics.contains(&format!("\"{}\": {{\"server_eof\":0, ", server.address)), "{statistics}");
    ended(proxy);
    assert!(!std::path::Path::new(&pid_file).exists());
    stop(server);
}

#[test]
fn file_of_nutcracker_is_tested() {
    let folder = TestFolder::new();
    let good = "a:\n  listen: 127.0.0.1:1\n  timeout: 400\n  servers:\n   - b:11211:1\n";
    std::fs::write(folder.path("good.yml"), good).unwrap();
    std::fs::write(folder.path("bad.yml"), good.replace("servers", "servrs")).unwrap();
    let test = |file: &str| {
        let output = folder.run(&["as", "nutcracker", "-t", "-c", file]);
        (output.status.code(), text(&output.stderr))
    };
    // nutcracker 0.5.0 prints the same lines and ends with the same codes.
    assert_eq!(
        test("good.yml"),
        (Some(0), "nutcracker: configuration file 'good.yml' syntax is ok\n".into())
    );
    for file in ["bad.yml", "absent.yml"] {
        let (code, said) = test(file);
        let last = format!("nutcracker: configuration file '{file}' syntax is invalid\n");
        assert!(code == Some(1) && said.ends_with(&last), "{said}");
    }
    let output = run(&["as", "nutcracker", "-V"]);
    assert!(output.status.success() && text(&output.stderr).starts_with("This is nutcracker-0.5.0\n"));
}

#[test]
fn links_of_these_names_run_the_proxies() {
    let folder = TestFolder::new();
    for (name, code) in [("moxi", 1), ("nutcracker", 1)] {
        let link = folder.path(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_todana"), &link).unwrap();
        let output = std::process::Command::new(&link).arg("-Q").output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(text(&output.stderr).contains("invalid option -- 'Q'"), "{name}");
    }
}
