//! The program on both sides of TLS connections, under its own name and under the name `memcached`.

use crate::running;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use running::{RunningServer, text, todana};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// A folder with the certificate of an authority, and with certificates of a server and of a client
/// that the authority has signed.
struct CertificateFolder {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateFolder {
    fn new() -> CertificateFolder {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let certificates = CertificateFolder { folder, issuer: Issuer::new(params, key) };
        certificates.sign("server", &["localhost", "127.0.0.1"]);
        certificates.sign("client", &["client"]);
        certificates
    }

    /// Writes a certificate with its key.
    fn sign(&self, file: &str, names: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let params =
            CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem() + &key.serialize_pem();
        std::fs::write(self.folder.path().join(format!("{file}.pem")), pem).unwrap();
    }

    fn path(&self, file: &str) -> String {
        self.folder.path().join(format!("{file}.pem")).display().to_string()
    }
}

#[test]
fn example_of_the_banner_works() {
    let certificates = CertificateFolder::new();
    let server = RunningServer::start(&["--tls-cert", &certificates.path("server")]);
    assert!(server.address.starts_with("todanas://127.0.0.1:"), "{}", server.address);
    let example = server.banner[2].trim_end().strip_prefix("try: ").unwrap();
    let shown: Vec<String> =
        example.split(" && ").map(|line| line.strip_prefix("todana ").unwrap().to_string()).collect();
    for (line, expected) in shown.iter().zip(["", "world"]) {
        let output = todana().args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout).trim_end(), expected);
    }
}

#[test]
fn client_verifies_authority_and_name_of_the_server() {
    let certificates = CertificateFolder::new();
    let server = RunningServer::start(&["--tls-cert", &certificates.path("server")]);
    let ca = certificates.path("ca");
    server.expect(&["set", "k", "v", "--tls-ca", &ca], 0);
    assert_eq!(server.expect(&["get", "k", "--tls-ca", &ca], 0).trim_end(), "v");
    let refused = |words: &[&str], address: &str| {
        let output = todana().args(words).args(["-S", address]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}");
        assert_eq!(text(&output.stdout), "");
        text(&output.stderr)
    };
    let error = refused(&["get", "k", "--tls-ca", &certificates.path("client")], &server.address);
    assert!(error.contains("certificate"), "{error}");
    certificates.sign("server", &["elsewhere"]);
    server.signal("HUP");
    // The signal takes effect after a while. As long as the old certificate is in use, the record
    // can be read.
    let named = || todana().args(["get", "k", "--tls-ca", &ca, "-S", &server.address]).output().unwrap();
    let refusal = (0..10_000).map(|_| named()).find(|output| !output.status.success()).unwrap();
    let why = text(&refusal.stderr);
    assert!(why.ends_with(": the server's certificate is not for 127.0.0.1, but for elsewhere\n"), "{why}");
    // If a certificate is trusted directly, its name does not matter.
    server.expect(&["get", "k", "--tls-ca", &certificates.path("server")], 0);
    // Without TLS the server sends no reply.
    refused(&["get", "k"], server.address.strip_prefix("todanas://").unwrap());
}

#[test]
fn client_presents_its_certificate_on_request() {
    let certificates = CertificateFolder::new();
    let (ca, client) = (certificates.path("ca"), certificates.path("client"));
    let server = RunningServer::start(&["--tls-cert", &certificates.path("server"), "--tls-ca", &ca]);
    server.expect(&["set", "k", "v", "--tls-ca", &ca, "--tls-cert", &client], 0);
    server.expect(&["get", "k", "--tls-ca", &ca], 3);
    // The example of the banner works too, after its placeholders are replaced.
    let example = server.banner[2].trim_end().strip_prefix("try: todana ").unwrap();
    let words = example.split(" && ").next().unwrap().split(' ');
    let words = words.map(|word| if ["CERTIFICATE", "KEY"].contains(&word) { client.as_str() } else { word });
    let output = todana().args(words).output().unwrap();
    assert!(output.status.success(), "{example}: {}", text(&output.stderr));
    let address = server.address.clone();
    server.expect(
        &[
            "bench",
            &address,
            "--tls-ca",
            &ca,
            "--tls-cert",
            &client,
            "--requests",
            "2000",
            "--keys",
            "100",
            "--connections",
            "3",
            "--pipeline",
            "7",
            "--value-size",
            "1-5000",
            "--verify",
            "--force",
        ],
        0,
    );
}

/// The messages do not name the TLS library, but say what to do.
#[test]
fn tls_errors_are_explained_with_the_remedy() {
    let certificates = CertificateFolder::new();
    let path = |file| certificates.path(file);
    let (ca, client, other) = (path("ca"), path("client"), CertificateFolder::new());
    let why = |address: &str, words: &[&str]| {
        let output = todana().args(["ping", "-S", address]).args(words).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let server = RunningServer::start(&["--tls-cert", &path("server")]);
    let said = why(&server.address, &["--tls-ca", &other.path("ca")]);
    let untrusted = format!(
        "todana: cannot connect to {}: the server's certificate is from no authority that is trusted here; \
         --tls-ca FILE names its authority, or its own certificate\n",
        server.address
    );
    assert_eq!(said, untrusted);
    let plain = RunningServer::start(&[]);
    let address = &plain.address;
    let said = why(&format!("todanas://{address}"), &["--tls-ca", &ca]);
    let no_tls = format!(
        "todana: cannot connect to todanas://{address}: the server does not speak TLS there; without TLS it is {address}\n"
    );
    assert_eq!(said, no_tls);
    let mutual = RunningServer::start(&["--tls-cert", &path("server"), "--tls-ca", &ca]);
    let said = why(&mutual.address, &["--tls-ca", &ca]);
    assert_eq!(
        said,
        "todana: the server wants a certificate of its clients: --tls-cert FILE, and --tls-key FILE\n"
    );
    let stranger = other.path("client");
    let said = why(&mutual.address, &["--tls-ca", &ca, "--tls-cert", &stranger]);
    assert_eq!(said, "todana: the server does not accept this client's certificate\n");
    let said = why(&mutual.address, &["--tls-ca", &ca, "--tls-cert", &client, "--tls-key", &stranger]);
    assert_eq!(said, format!("todana: private key {stranger}: it is not the key of the certificate\n"));
    let said = why(&mutual.address, &["--tls-ca", &ca, "--tls-cert", &ca]);
    assert_eq!(said, format!("todana: private key {ca}: there is no private key in it\n"));
    let serve = ["serve", "-p", "-1", "--tls-cert", &client, "--tls-key", &stranger];
    let said = text(&todana().args(serve).output().unwrap().stderr);
    assert_eq!(
        said,
        format!("todana: Error loading the key: {stranger} : it is not the key of the certificate\n")
    );
    let said = why(&mutual.address, &["--tls-ca", "/dev/null/none"]);
    assert!(said.starts_with("todana: authorities /dev/null/none: Not a directory"), "{said}");
}

#[test]
fn tls_files_without_tls_are_wrong_usage() {
    let server = RunningServer::start(&[]);
    for words in [["get", "k", "--tls-ca", "/x"], ["ping", "--tls-cert", "/x", "--tls-ca=/y"]] {
        assert_eq!(server.expect(&words, 2), "");
    }
    for words in [
        &["serve", "--tls-key", "/x"][..],
        &["serve", "--tls-cert", "/x"],
        &["serve", "-l", "mtls:127.0.0.1"],
    ] {
        let output = todana().args(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
    }
}

/// A server under the name `memcached`, which is stopped when the value is dropped.
struct MemcachedProcess {
    child: Child,
    ports: Vec<u16>,
}

impl MemcachedProcess {
    fn start(certificates: &CertificateFolder, options: &[&str]) -> MemcachedProcess {
        let port_file = certificates.folder.path().join("ports");
        let mut command = todana();
        command.args(["as", "memcached", "-u", "root", "-p", "-1"]).args(options);
        let mut child =
            command.env("MEMCACHED_PORT_FILENAME", &port_file).stderr(Stdio::piped()).spawn().unwrap();
        // The file appears when the server listens. If the server ends before, the wait ends, too.
        while !port_file.exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let ports = std::fs::read_to_string(&port_file).unwrap_or_else(|_| {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("{error}");
        });
        let ports = ports.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        MemcachedProcess { child, ports }
    }
}

impl Drop for MemcachedProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn memcached_tls_options_mean_the_same() {
    let certificates = CertificateFolder::new();
    let (ca, cert) = (certificates.path("ca"), certificates.path("server"));
    let words =
        format!("ssl_chain_cert={cert},ssl_key={cert},ssl_ca_cert={ca},ssl_verify_mode=2,ssl_session_cache");
    let server =
        MemcachedProcess::start(&certificates, &["-Z", "-o", &words, "-l", "127.0.0.1,notls:127.0.0.2"]);
    let address = format!("todanas://127.0.0.1:{}", server.ports[0]);
    let run = |words: &[&str]| {
        let output = todana().args(words).args(["--tls-ca", &ca, "-S", &address]).output().unwrap();
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(run(&["set", "k", "v"]).0, Some(3), "no certificate");
    assert_eq!(run(&["set", "k", "v", "--tls-cert", &certificates.path("client")]).0, Some(0));
    let mut plain = TcpStream::connect(("127.0.0.2", server.ports[1])).unwrap();
    plain.write_all(b"get k\r\nrefresh_certs\r\nstats settings\r\n").unwrap();
    let lines: Vec<String> = BufReader::new(plain)
        .lines()
        .map(Result::unwrap)
        .take_while(|line| !line.contains("ssl_min_version"))
        .collect();
    assert_eq!(lines[..4], ["VALUE k 0 1", "v", "END", "OK"]);
    assert!(lines.contains(&"STAT ssl_enabled yes".to_string()));
    assert!(lines.contains(&"STAT ssl_verify_mode 3".to_string()));
}

/// memcached's suite combines -U with -Z in all six of its TLS files, but the server once refused
/// to start with both.
#[test]
fn udp_beside_tls_is_served_with_a_warning() {
    let certificates = CertificateFolder::new();
    let words = format!("ssl_chain_cert={0},ssl_key={0}", certificates.path("server"));
    let mut server =
        MemcachedProcess::start(&certificates, &["-Z", "-o", &words, "-l", "127.0.0.1", "-U", "-1"]);
    let [tcp, udp] = server.ports[..] else { panic!("{:?}", server.ports) };
    let (ca, address) = (certificates.path("ca"), format!("todanas://127.0.0.1:{tcp}"));
    let set = todana().args(["set", "k", "v", "--tls-ca", &ca, "-S", &address]).output().unwrap();
    assert!(set.status.success(), "{}", text(&set.stderr));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    socket.send_to(b"\0\x01\0\0\0\x01\0\0get k\r\n", ("127.0.0.1", udp)).unwrap();
    let mut reply = [0; 100];
    let len = socket.recv(&mut reply).unwrap();
    assert_eq!(&reply[..len], b"\0\x01\0\0\0\x01\0\0VALUE k 0 1\r\nv\r\nEND\r\n");
    let mut said = String::new();
    BufReader::new(server.child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let warning = "-U: UDP has no TLS; requests over UDP are served in clear (-U 0 to disable)\n";
    assert_eq!(said, warning);
}

#[test]
fn replica_uses_tls_with_a_client_certificate() {
    let certificates = CertificateFolder::new();
    let data = |name: &str| certificates.folder.path().join(name).display().to_string();
    let ca = certificates.path("ca");
    let master = RunningServer::start(&[
        "--tls-cert",
        &certificates.path("server"),
        "--tls-ca",
        &ca,
        "--data-dir",
        &data("master"),
    ]);
    let client = certificates.path("client");
    let set = ["set", "k", "v", "--flags", "7", "--tls-ca", &ca, "--tls-cert", &client];
    master.expect(&set, 0);
    let replica = RunningServer::start(&[
        "--data-dir",
        &data("replica"),
        "--server-id",
        "2",
        "--replicate",
        &master.address,
        "--replica-tls-ca",
        &ca,
        "--replica-tls-cert",
        &client,
    ]);
    let mut reader = BufReader::new(TcpStream::connect(&replica.address).unwrap());
    let mut line = String::new();
    while !line.starts_with("VA") {
        line.clear();
        reader.get_mut().write_all(b"mg k f v\r\n").unwrap();
        reader.read_line(&mut line).unwrap();
    }
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "VA 1 f7\r\nv\r\n");
}
