//! `todana doctor`: a configuration, a machine, and running servers.

use crate::running;

use running::{RunningServer, TestFolder, stop, text};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Returns the lines of a report that begin with this word.
fn lines<'t>(report: &'t str, level: &str) -> Vec<&'t str> {
    let with_level = report.lines().filter(|line| line.starts_with(level));
    with_level.map(|line| line[level.len()..].trim_start()).collect()
}

#[test]
fn dangerous_configuration_is_a_problem() {
    let folder = TestFolder::new();
    let file = folder.path("todana.toml");
    let data = folder.path("data");
    let check = |content: &str, code| {
        fs::write(&file, content).unwrap();
        folder.expect(&["doctor", "--config", &file], code)
    };
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o700)).unwrap();
    let report = check(&format!("memory-limit = 4\ndata-dir = {data:?}\n"), 0);
    let fine = lines(&report, "ok");
    assert!(fine.contains(&"listener: 127.0.0.1, this machine only"), "{report}");
    assert!(fine.contains(&format!("directory {data}: mode 700").as_str()), "{report}");

    fs::set_permissions(&data, Permissions::from_mode(0o777)).unwrap();
    let wrong =
        format!("memory-limit = \"64t\"\nlisten = \"0.0.0.0\"\nudp-port = 11311\ndata-dir = {data:?}\n");
    let report = check(&wrong, 1);
    let problems = lines(&report, "problem");
    for expected in [
        "listener: 0.0.0.0, with UDP, whose sender can be forged; leave out -U, or listen on 127.0.0.1",
        &format!("directory {data}: all users can change the records; chmod o-rwx {data}"),
    ] {
        assert!(problems.contains(&expected), "{expected}\n{report}");
    }
    assert!(problems.iter().any(|line| line.starts_with("memory limit: 64.00 TiB, but ")), "{report}");
    let only_those = folder.expect(&["doctor", "--quiet", "--config", &file], 1);
    assert_eq!(lines(&only_those, "ok"), Vec::<&str>::new());

    let report = check("memory-limit = \"many\"\n", 1);
    let expected = format!("options: {file}, line 1: ");
    assert!(lines(&report, "problem")[0].starts_with(&expected), "{report}");
    assert!(report.ends_with("1 check: 1 problem, 0 warnings\n"), "{report}");
}

#[test]
fn running_server_is_checked() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let options = ["-t", "2", "--admin-port", "0", "-c", "20", "-m", "4", "-M", "--data-dir", &data];
    let server = RunningServer::start(&options);
    let report = server.expect(&["doctor", &server.address], 0);
    let fine = lines(&report, "ok");
    for expected in ["evictions: none", "update log: well", "database mem:hash: well", "connections: 1 of 20"]
    {
        assert!(fine.contains(&expected), "{expected}\n{report}");
    }
    assert!(fine.iter().any(|line| line.starts_with(&format!("directory {data}: on "))), "{report}");
    // Writes fill the memory, and are refused.
    let value = "v".repeat(900_000);
    let refused = (0..8).any(|number| {
        server.run(&["set", &format!("k{number}"), &value[..100_000]]);
        (0..20).any(|part| {
            !server.run(&["set", &format!("k{number}:{part}"), &value[..100_000]]).status.success()
        })
    });
    assert!(refused);
    let report = server.expect(&["doctor", &server.address], 1);
    assert!(lines(&report, "problem")[0].starts_with("store_no_memory: "), "{report}");
    stop(server);
    assert!(text(&folder.run(&["doctor", "127.0.0.1:1"]).stderr).contains("is the server running?"));
}
