//! The languages of the clients: what each needs, and how its program is started.

use super::program::Program;
use crate::step::{Outcome, install_debian, program};
use std::path::{Path, PathBuf};

pub(crate) const PYTHON: &str = ".venv/bin/python";
/// Folder for the packages of the other languages; git ignores it.
const INSTALLED: &str = ".clients";

type Prepared = Result<Program, Outcome>;

pub(super) fn pymemcache() -> Prepared {
    python("pymemcache", "pymemcache", &[])
}

pub(super) fn pylibmc() -> Prepared {
    python("pylibmc", "pylibmc", &["libmemcached-dev", "zlib1g-dev", "gcc", "libc6-dev"])
}

pub(super) fn python_memcached() -> Prepared {
    python("python-memcached", "memcache", &[])
}

pub(super) fn aiomcache() -> Prepared {
    python("aiomcache", "aiomcache", &[])
}

/// pymemcache and OpenSSL, as Python has it, over TLS.
pub(super) fn tls() -> Prepared {
    pip("pymemcache", "pymemcache", &[])?;
    Ok(pytest("tls"))
}

/// A certificate that is its own authority, and its key, both made anew.
pub(super) fn certificate() -> Result<(PathBuf, PathBuf), Outcome> {
    certificate_in(&Path::new(INSTALLED).join("tls"))
}

/// The same in a folder of one's own, where nobody else makes them anew meanwhile.
pub(crate) fn certificate_in(folder: &Path) -> Result<(PathBuf, PathBuf), Outcome> {
    need(|| program("openssl", &["version"]).succeeds(), "openssl", &["openssl"])?;
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let paths = certificate.to_str().zip(key.to_str());
    let made = std::fs::create_dir_all(folder).is_ok()
        && paths.is_some_and(|(certificate, key)| {
            let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
                         -addext subjectAltName=DNS:localhost,IP:127.0.0.1";
            let words: Vec<&str> = words.split_whitespace().chain(["-out", certificate, "-keyout", key]).collect();
            program("openssl", &words).succeeds()
        });
    if made { Ok((certificate, key)) } else { Err(Outcome::Failed("openssl made no certificate".into())) }
}

/// pip's package, the module in it, and the Debian packages that it may want to be built.
fn python(package: &str, module: &str, headers: &[&str]) -> Prepared {
    pip(package, module, headers)?;
    Ok(pytest(&package.replace('-', "_")))
}

/// A package in the project's own Python, with pytest.
pub(crate) fn pip(package: &str, module: &str, headers: &[&str]) -> Result<(), Outcome> {
    if !Path::new(PYTHON).exists() {
        let made = || program("python3", &["-m", "venv", ".venv"]).succeeds();
        need(made, "a python3 with venv", &["python3", "python3-venv"])?;
    }
    let install = || {
        let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pytest", package];
        program(PYTHON, &words).succeeds()
    };
    let has = program(PYTHON, &["-c", &format!("import {module}, pytest")]).succeeds();
    let is_there = has || install() || (!headers.is_empty() && install_debian(headers) && install());
    if !is_there {
        return Err(Outcome::Skipped(format!("{package} could not be installed with pip")));
    }
    Ok(())
}

fn pytest(name: &str) -> Program {
    let file = format!("tests/clients/python/{name}_test.py");
    let words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", &file];
    Program::runner(PYTHON, &words).env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Go's, from its module proxy.
pub(super) fn gomemcache() -> Prepared {
    need(|| program("go", &["version"]).succeeds(), "go", &["golang-go"])?;
    let go = |words: &[&str]| {
        // Nothing of the user's own is touched, and no newer toolchain is fetched.
        let settings = [("GOTOOLCHAIN", "local"), ("GOFLAGS", "-modcacherw"), ("GOWORK", "off")];
        let folders = [("GOPATH", "go"), ("GOMODCACHE", "go/modules"), ("GOCACHE", "go/cache")];
        // `go -C` is younger than the oldest go that this wants to run with.
        let mut run =
            program("sh", &[&["-c", "cd tests/clients/go && exec go \"$@\"", "go"], words].concat());
        for (name, value) in settings {
            run = run.env(name, value);
        }
        for (name, folder) in folders {
            run = run.env(name, &installed(folder));
        }
        run
    };
    if !go(&["mod", "download"]).succeeds() {
        return Err(Outcome::Skipped("gomemcache could not be installed with go".into()));
    }
    let executable = installed("go/gomemcache");
    match go(&["build", "-o", &executable, "."]).run() {
        Outcome::Passed => Ok(Program::new(executable, &[])),
        ending => Err(ending),
    }
}

/// Java's, from Maven's repository.
pub(super) fn spymemcached() -> Prepared {
    java("Spymemcached.java")
}

/// The same with a login.
pub(super) fn spymemcached_login() -> Prepared {
    java("SpymemcachedLogin.java")
}

fn java(file: &str) -> Prepared {
    const JAR: &str = "java/spymemcached-2.12.3.jar";
    const JDK: &str = "default-jdk-headless";
    // A JRE alone does not run source files.
    let java = || program("javac", &["--version"]).succeeds();
    need(java, "JDK", &[JDK])?;
    if !Path::new(&installed(JAR)).exists() {
        need(|| program("mvn", &["--version"]).succeeds(), "maven", &["maven", JDK])?;
        let repository = format!("-Dmaven.repo.local={}", installed("maven"));
        let output = format!("-DoutputDirectory={}", installed("java"));
        let project = ["--batch-mode", "--quiet", "--file", "tests/clients/java/pom.xml"];
        let copy = ["dependency:copy-dependencies", &repository, &output];
        if !program("mvn", &[&project[..], &copy].concat()).succeeds() {
            return Err(Outcome::Skipped("spymemcached could not be installed with maven".into()));
        }
    }
    Ok(Program::new("java", &["-cp", &installed(JAR), &format!("tests/clients/java/{file}")]))
}

/// Node's, from npm.
pub(super) fn memjs() -> Prepared {
    node("memjs.js")
}

/// The same with a login.
pub(super) fn memjs_login() -> Prepared {
    node("memjs_login.js")
}

fn node(file: &str) -> Prepared {
    const PACKAGE: &str = "memjs@1.3.2";
    need(|| program("node", &["--version"]).succeeds(), "node", &["nodejs"])?;
    if !Path::new(&installed("node/node_modules/memjs/package.json")).exists() {
        need(|| program("npm", &["--version"]).succeeds(), "npm", &["npm"])?;
        let words = ["install", "--ignore-scripts", "--no-audit", "--prefix", &installed("node"), PACKAGE];
        if !program("npm", &words).succeeds() {
            return Err(Outcome::Skipped("memjs could not be installed with npm".into()));
        }
    }
    let modules = installed("node/node_modules");
    Ok(Program::new("node", &[&format!("tests/clients/node/{file}")]).env("NODE_PATH", &modules))
}

/// Ruby's, as Debian packages it; Debian 12 has a 3.
pub(super) fn dalli() -> Prepared {
    ruby("dalli.rb", BINARY_DALLI.0, BINARY_DALLI.1)
}

/// The same with a login.
pub(super) fn dalli_login() -> Prepared {
    ruby("dalli_login.rb", BINARY_DALLI.0, BINARY_DALLI.1)
}

/// The versions of Dalli that speak the binary protocol; other versions are not used for it.
const BINARY_DALLI: (&str, &str) =
    ("Dalli::VERSION.to_i < 5", "this Dalli does not speak the binary protocol any more");

/// The same with meta commands, which are sound from 4 on: 3.2 takes a line end in a value for the
/// end of the value.
pub(super) fn dalli_meta() -> Prepared {
    ruby("dalli.rb", "Dalli::VERSION.to_i >= 4", "this Dalli is too old to speak meta commands well")
}

/// Dalli, if it meets a condition.
fn ruby(file: &str, condition: &str, why_not: &str) -> Prepared {
    let holds =
        |condition: &str| program("ruby", &["-e", &format!("require 'dalli'; exit({condition})")]).succeeds();
    need(|| holds("true"), "ruby with dalli", &["ruby", "ruby-dalli"])?;
    if !holds(condition) {
        return Err(Outcome::Skipped(why_not.into()));
    }
    Ok(Program::new("ruby", &[&format!("tests/clients/ruby/{file}")]))
}

/// Perl's, as Debian packages it.
pub(super) fn cache_memcached_fast() -> Prepared {
    let has = || program("perl", &["-MCache::Memcached::Fast", "-e", "1"]).succeeds();
    need(has, "perl with Cache::Memcached::Fast", &["perl", "libcache-memcached-fast-perl"])?;
    Ok(Program::new("perl", &["tests/clients/perl/cache_memcached_fast.pl"]))
}

/// PHP's, as Debian packages it.
pub(super) fn php_memcached() -> Prepared {
    php("php_memcached.php")
}

/// The same with a login.
pub(super) fn php_memcached_login() -> Prepared {
    let client = php("php_memcached_login.php")?;
    let has = || program("php", &["-r", "exit(Memcached::HAVE_SASL ? 0 : 1);"]).succeeds();
    need(has, "php-memcached with SASL", &["libsasl2-modules"])?;
    Ok(client)
}

fn php(file: &str) -> Prepared {
    let has = || program("php", &["-r", "exit(extension_loaded('memcached') ? 0 : 1);"]).succeeds();
    need(has, "php with memcached", &["php-cli", "php-memcached"])?;
    Ok(Program::new("php", &[&format!("tests/clients/php/{file}")]))
}

/// Asks for something, and for the Debian packages that have it.
fn need(has: impl Fn() -> bool, what: &str, packages: &[&str]) -> Result<(), Outcome> {
    if has() || (install_debian(packages) && has()) {
        return Ok(());
    }
    Err(Outcome::Skipped(format!("there is no {what} (Debian: {})", packages.join(" "))))
}

/// The full path of something in the folder for what is installed.
fn installed(name: &str) -> String {
    let path = Path::new(INSTALLED).join(name);
    std::path::absolute(&path).unwrap_or(path).display().to_string()
}
