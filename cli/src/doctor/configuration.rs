//! Checks options that are valid, but dangerous.

use super::finding::{CheckReport, Finding};
use super::{ServerNeeds, certificate};
use crate::amount::amount;
use crate::time_to_live;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use todana_server::{AuthenticationMode, ServerOptions};

/// Certificates are renewed before this number of days is left.
const DAYS_MIN: i64 = 30;
const DAY_S: i64 = 86_400;
/// The memory limits of `serve` are in MiB.
const MIB: u64 = 1 << 20;

/// Checks options, and returns what the server needs of its machine.
pub(super) fn check(
    options: &ServerOptions,
    file: Option<&PathBuf>,
    report: &mut CheckReport,
) -> ServerNeeds {
    report.add(listeners(options));
    report.add_all(admin_page(options));
    report.add_all(tls(options));
    let passwords = match &options.protocols.authentication {
        AuthenticationMode::None => None,
        AuthenticationMode::Sasl(file)
        | AuthenticationMode::Passwords(file)
        | AuthenticationMode::Text(file) => Some(file),
    };
    report.add_all(passwords.map(|file| secret_file("password file", file)));
    let key = options.listen.tls.as_ref().map(|tls| tls.key.as_ref().unwrap_or(&tls.chain));
    report.add_all(key.map(|file| secret_file("private key", file)));
    report.add_all(file.and_then(|file| changeable_file(file)));
    let databases = options.databases.all();
    let directories = databases.iter().filter_map(|database| match &database.data {
        Some(data) => Some(data.directory.clone()),
        None => database.name.path.clone(),
    });
    ServerNeeds {
        memory_limit: options.memory.limit_mib * MIB,
        connections_max: options.limits.connections_max as u64,
        directories: directories.collect(),
        pid: None,
    }
}

/// Returns true if an address of a listener is reachable from this machine only.
fn is_local(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(':') { host } else { address }
    });
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host == "::1" || host.starts_with("127.") || host.starts_with("[::1]")
}

fn listeners(options: &ServerOptions) -> Finding {
    let listen = &options.listen;
    let open: Vec<&str> =
        listen.addresses.iter().map(String::as_str).filter(|address| !is_local(address)).collect();
    if let Some(path) = listen.unix_socket.as_ref().filter(|_| listen.addresses.is_empty()) {
        return Finding::ok("listener", format!("{}, a Unix socket", path.display()));
    }
    // Without an address, `serve` listens on all.
    if open.is_empty() && !listen.addresses.is_empty() {
        return Finding::ok("listener", format!("{}, this machine only", listen.addresses.join(", ")));
    }
    let places = if open.is_empty() { "all addresses".to_string() } else { open.join(", ") };
    let wants_certificates = listen.tls.as_ref().is_some_and(|tls| tls.verify_mode >= 2);
    let has_login = options.protocols.authentication != AuthenticationMode::None || wants_certificates;
    if listen.udp_port.is_some() {
        return Finding::problem(
            "listener",
            format!("{places}, with UDP, whose sender can be forged"),
            "leave out -U, or listen on 127.0.0.1",
        );
    }
    match (has_login, &listen.tls) {
        (true, Some(_)) => Finding::ok("listener", format!("{places}, with login and TLS")),
        (true, None) => Finding::warning(
            "listener",
            format!("{places}, with passwords in plain text"),
            "switch on TLS with --tls-cert, or use a trusted network only",
        ),
        (false, _) => Finding::warning(
            "listener",
            format!("{places}, without login: who reaches it can read and write all records"),
            "require logins (docs/tls-and-logins.md), listen on 127.0.0.1, or filter the port",
        ),
    }
}

fn admin_page(options: &ServerOptions) -> Option<Finding> {
    let admin = options.observation.admin.as_ref()?;
    if admin.listen.iter().all(|address| is_local(address)) {
        return Some(Finding::ok("admin page", "this machine only"));
    }
    let places = admin.listen.join(", ");
    Some(match admin.token_file {
        Some(_) => Finding::ok("admin page", format!("{places}, with a token")),
        None => Finding::warning(
            "admin page",
            format!("{places}, without a token"),
            "add --admin-token-file FILE, or leave out --admin-listen",
        ),
    })
}

fn tls(options: &ServerOptions) -> Option<Finding> {
    let chain = &options.listen.tls.as_ref()?.chain;
    let subject = format!("certificate {}", chain.display());
    let until = std::fs::read_to_string(chain).ok().and_then(|pem| certificate::valid_until(&pem));
    let Some(until) = until else {
        return Some(Finding::problem(&subject, "cannot be read", "name a PEM file with --tls-cert"));
    };
    Some(certificate_expiry(&subject, until))
}

/// Checks the Unix time until which a certificate is valid.
pub(super) fn certificate_expiry(subject: &str, until: i64) -> Finding {
    certificate_days(subject, (until - time_to_live::now() as i64).div_euclid(DAY_S))
}

fn certificate_days(subject: &str, days: i64) -> Finding {
    const CHANGE: &str = "renew it, then send SIGHUP to the server";
    match days {
        ..0 => Finding::problem(subject, "has expired", CHANGE),
        0..DAYS_MIN => {
            let left = amount(days.unsigned_abs(), "day");
            Finding::warning(subject, format!("expires in {left}"), CHANGE)
        }
        _ => Finding::ok(subject, format!("valid for {}", amount(days.unsigned_abs(), "day"))),
    }
}

/// Checks that other users cannot read a file.
fn secret_file(what: &str, path: &Path) -> Finding {
    let subject = format!("{what} {}", path.display());
    match path.metadata() {
        Err(error) => Finding::problem(&subject, error.to_string(), "name a file that the server can read"),
        Ok(metadata) if metadata.permissions().mode() & 0o004 != 0 => {
            Finding::warning(&subject, "all users can read it", format!("chmod o-rwx {}", path.display()))
        }
        Ok(_) => Finding::ok(&subject, "other users cannot read it"),
    }
}

/// Warns if all users can change the configuration file.
fn changeable_file(path: &Path) -> Option<Finding> {
    let mode = path.metadata().ok()?.permissions().mode();
    let subject = format!("configuration file {}", path.display());
    let change = format!("chmod o-w {}", path.display());
    (mode & 0o002 != 0).then(|| Finding::problem(&subject, "all users can change it", change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::FindingLevel;
    use std::ffi::OsString;

    fn level(line: &str) -> FindingLevel {
        let words = ["todana", "serve"].into_iter().chain(line.split_whitespace()).map(OsString::from);
        listeners(&crate::serve::effective(words).map_err(|_| line.to_string()).unwrap().options).level
    }

    #[test]
    fn open_listeners_are_reported() {
        for line in ["", "-l 127.0.0.1", "-l ::1", "-l localhost:7", "-l 127.0.0.1 -U 11311", "-s /run/x"] {
            assert_eq!(level(line), FindingLevel::Ok, "{line}");
        }
        for line in ["-l 0.0.0.0", "-l 127.0.0.1,10.0.0.5", "-l *", "-l ::"] {
            assert_eq!(level(line), FindingLevel::Warning, "{line}");
        }
        assert_eq!(level("-l 0.0.0.0 -U 11311"), FindingLevel::Problem);
    }

    #[test]
    fn certificates_are_renewed_in_time() {
        let levels = [-1, 0, 29, 30].map(|days| certificate_days("certificate", days).level);
        let (problem, warning, ok) = (FindingLevel::Problem, FindingLevel::Warning, FindingLevel::Ok);
        assert_eq!(levels, [problem, warning, warning, ok]);
        assert!(certificate_days("c", 1).text.starts_with("c: expires in 1 day; renew it"));
    }
}
