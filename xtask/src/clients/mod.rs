//! Real clients against the real server.
//!
//! `tests/clients/LANGUAGE/` has a program for each client. What it needs is installed into the
//! project's own folders, or as packages where this is root on Debian; what cannot be had is
//! skipped, with the reason.

mod language;
mod memccapable;
mod program;
mod server;
mod tools;

pub(crate) use language::{PYTHON, certificate_in, pip};
pub(crate) use server::Server;

use crate::step::{Outcome, Report};
use program::Program;

/// The protocol of a client; many support both.
#[derive(Clone, Copy)]
enum Protocol {
    Text,
    Binary,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Protocol::Text => "text",
            Protocol::Binary => "binary",
        }
    }
}

use Protocol::{Binary, Text};

/// A client library.
struct Client {
    name: &'static str,
    protocols: &'static [Protocol],
    /// Installs it, and says what to run.
    prepare: fn() -> Result<Program, Outcome>,
}

const CLIENTS: [Client; 11] = [
    Client { name: "pymemcache", protocols: &[Text], prepare: language::pymemcache },
    Client { name: "pylibmc", protocols: &[Text, Binary], prepare: language::pylibmc },
    Client { name: "python-memcached", protocols: &[Text], prepare: language::python_memcached },
    Client { name: "aiomcache", protocols: &[Text], prepare: language::aiomcache },
    Client { name: "gomemcache", protocols: &[Text], prepare: language::gomemcache },
    Client { name: "spymemcached", protocols: &[Text, Binary], prepare: language::spymemcached },
    Client { name: "memjs", protocols: &[Binary], prepare: language::memjs },
    Client { name: "dalli", protocols: &[Binary], prepare: language::dalli },
    Client { name: "dalli meta", protocols: &[Text], prepare: language::dalli_meta },
    Client { name: "Cache::Memcached::Fast", protocols: &[Text], prepare: language::cache_memcached_fast },
    Client { name: "php-memcached", protocols: &[Text, Binary], prepare: language::php_memcached },
];

/// A client library that logs in, and how it is prepared.
type LoginClient = (&'static str, fn() -> Result<Program, Outcome>);

const LOGINS: [LoginClient; 4] = [
    ("spymemcached", language::spymemcached_login),
    ("memjs", language::memjs_login),
    ("dalli", language::dalli_login),
    ("php-memcached", language::php_memcached_login),
];

/// The users that may log in, as in the transcripts.
const PASSWORDS: &str = "tests/transcripts/memcached-binary/passwords";

pub(crate) fn run(report: &mut Report) {
    for client in CLIENTS {
        for &protocol in client.protocols {
            let name = match client.protocols {
                [_] => format!("clients: {}", client.name),
                _ => format!("clients: {} {}", client.name, protocol.name()),
            };
            report.step(&name, || {
                try_client(&[], |server| {
                    let program = (client.prepare)()?;
                    Ok(program.run(&server.address, protocol))
                })
            });
        }
    }
    report.step("clients: TLS", || over_tls().unwrap_or_else(|ending| ending));
    for (name, prepare) in LOGINS {
        report.step(&format!("clients: {name} login"), || {
            try_client(&["-S", "--password-file", PASSWORDS], |server| {
                let program = prepare()?.env("TODANA_USER", "alice").env("TODANA_PASSWORD", "secret");
                Ok(program.run(&server.address, Binary))
            })
        });
    }
    for protocol in [Text, Binary] {
        let name = format!("clients: memccapable {}", protocol.name());
        report.step(&name, || try_client(&[], |server| memccapable::run(server, protocol)));
    }
    report.step("clients: libmemcached-tools", || try_client(&[], tools::run_libmemcached));
    report.step("clients: memcached-tool", || try_client(&[], tools::run_memcached_tool));
}

/// Clients whose TLS is OpenSSL's.
fn over_tls() -> Result<Outcome, Outcome> {
    let (certificate, key) = language::certificate()?;
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let server = Server::start(&["-I", "2m", "--tls-cert", &certificate, "--tls-key", &key]);
    let server = server.map_err(Outcome::Failed)?;
    let address = server.address.strip_prefix("todanas://").unwrap_or(&server.address);
    Ok(language::tls()?.env("TODANA_TLS_CA", &certificate).run(address, Text))
}

/// Gives a client a server of its own.
fn try_client(options: &[&str], run: impl FnOnce(&Server) -> Result<Outcome, Outcome>) -> Outcome {
    let server = match Server::start(&[&["-I", "2m", "--track-sizes"][..], options].concat()) {
        Ok(server) => server,
        Err(error) => return Outcome::Failed(error),
    };
    run(&server).unwrap_or_else(|ending| ending)
}
