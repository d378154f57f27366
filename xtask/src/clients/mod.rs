//! Tests existing memcached clients with a running server.
//!
//! `tests/clients/LANGUAGE/` has a program for each client. The libraries that it needs are
//! installed into the project's own folders or, as root on Debian, as packages. A client whose
//! libraries cannot be installed is skipped, with the reason.

mod language;
mod memccapable;
mod program;
mod server;
mod tools;

pub(crate) use language::{PYTHON, certificate_in, npm, pip, require};
pub(crate) use server::TestServer;

use crate::step::{StepOutcome, StepReport};
use program::ClientProgram;

/// The protocol of a client; many support both.
#[derive(Clone, Copy)]
enum ClientProtocol {
    Text,
    Binary,
}

impl ClientProtocol {
    fn name(self) -> &'static str {
        match self {
            ClientProtocol::Text => "text",
            ClientProtocol::Binary => "binary",
        }
    }
}

use ClientProtocol::{Binary, Text};

/// A client library.
struct ClientLibrary {
    name: &'static str,
    protocols: &'static [ClientProtocol],
    /// Installs the client and returns its program.
    prepare: fn() -> Result<ClientProgram, StepOutcome>,
}

const CLIENTS: [ClientLibrary; 11] = [
    ClientLibrary { name: "pymemcache", protocols: &[Text], prepare: language::pymemcache },
    ClientLibrary { name: "pylibmc", protocols: &[Text, Binary], prepare: language::pylibmc },
    ClientLibrary { name: "python-memcached", protocols: &[Text], prepare: language::python_memcached },
    ClientLibrary { name: "aiomcache", protocols: &[Text], prepare: language::aiomcache },
    ClientLibrary { name: "gomemcache", protocols: &[Text], prepare: language::gomemcache },
    ClientLibrary { name: "spymemcached", protocols: &[Text, Binary], prepare: language::spymemcached },
    ClientLibrary { name: "memjs", protocols: &[Binary], prepare: language::memjs },
    ClientLibrary { name: "dalli", protocols: &[Binary], prepare: language::dalli },
    ClientLibrary { name: "dalli meta", protocols: &[Text], prepare: language::dalli_meta },
    ClientLibrary {
        name: "Cache::Memcached::Fast",
        protocols: &[Text],
        prepare: language::cache_memcached_fast,
    },
    ClientLibrary { name: "php-memcached", protocols: &[Text, Binary], prepare: language::php_memcached },
];

/// The name of a client library that logs in, and the function that prepares its program.
type LoginClient = (&'static str, fn() -> Result<ClientProgram, StepOutcome>);

const LOGINS: [LoginClient; 4] = [
    ("spymemcached", language::spymemcached_login),
    ("memjs", language::memjs_login),
    ("dalli", language::dalli_login),
    ("php-memcached", language::php_memcached_login),
];

/// A client library, its protocol, and the function that prepares its program.
type TtserverClient = (&'static str, ClientProtocol, fn() -> Result<ClientProgram, StepOutcome>);

/// Memcached's clients with flags and expiry, which Tokyo Tyrant does not keep.
const AT_TTSERVER: [TtserverClient; 3] = [
    ("pylibmc text", Text, language::pylibmc),
    ("pylibmc binary", Binary, language::pylibmc),
    ("dalli", Binary, language::dalli),
];

/// The users that may log in, as in the transcripts.
const PASSWORDS: &str = "tests/transcripts/memcached-binary/passwords";

pub(crate) fn run(report: &mut StepReport) {
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
    for (name, protocol, prepare) in AT_TTSERVER {
        report.step(&format!("clients: {name} with ttserver"), || {
            let server = TestServer::run(&["as", "ttserver", "-host", "127.0.0.1", "-port", "-1", "*"]);
            let run = |server: TestServer| {
                Ok(prepare()?.env("TODANA_ITEM_LIMIT", "none").run(&server.address, protocol))
            };
            server.map_err(StepOutcome::Failed).and_then(run).unwrap_or_else(|ending| ending)
        });
    }
    for client in CLIENTS {
        for &protocol in client.protocols {
            let name = format!("clients: {} {} through a proxy", client.name, protocol.name());
            report.step(&name, || try_through_proxy(&client, protocol).unwrap_or_else(|ending| ending));
        }
    }
    for protocol in [Text, Binary] {
        let name = format!("clients: memccapable {}", protocol.name());
        report.step(&name, || try_client(&[], |server| memccapable::run(server, protocol)));
    }
    report.step("clients: libmemcached-tools", || try_client(&[], tools::run_libmemcached));
    report.step("clients: memcached-tool", || try_client(&[], tools::run_memcached_tool));
}

/// Runs the clients that use OpenSSL for TLS.
fn over_tls() -> Result<StepOutcome, StepOutcome> {
    let (certificate, key) = language::certificate()?;
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let server = TestServer::start(&["-I", "2m", "--tls-cert", &certificate, "--tls-key", &key]);
    let server = server.map_err(StepOutcome::Failed)?;
    let address = server.address.strip_prefix("todanas://").unwrap_or(&server.address);
    Ok(language::tls()?.env("TODANA_TLS_CA", &certificate).run(address, Text))
}

/// Runs a client with a proxy of three servers.
fn try_through_proxy(client: &ClientLibrary, protocol: ClientProtocol) -> Result<StepOutcome, StepOutcome> {
    let program = (client.prepare)()?.env("TODANA_SERVERS", "3");
    let servers = [(); 3].map(|()| TestServer::memcached(&["-I", "2m"]));
    let servers: Vec<TestServer> =
        servers.into_iter().collect::<Result<_, _>>().map_err(StepOutcome::Failed)?;
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let list = addresses.join(",");
    let proxy = TestServer::run(&["proxy", "--servers", &list, "-l", "127.0.0.1:0"]);
    Ok(program.run(&proxy.map_err(StepOutcome::Failed)?.address, protocol))
}

/// Runs a client with a server of its own.
fn try_client(
    options: &[&str],
    run: impl FnOnce(&TestServer) -> Result<StepOutcome, StepOutcome>,
) -> StepOutcome {
    let server = match TestServer::start(&[&["-I", "2m", "--track-sizes"][..], options].concat()) {
        Ok(server) => server,
        Err(error) => return StepOutcome::Failed(error),
    };
    run(&server).unwrap_or_else(|ending| ending)
}
