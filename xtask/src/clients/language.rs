//! The languages of the clients: how the packages of each are installed, and how its program is
//! started.

use super::program::ClientProgram;
use crate::step::{StepOutcome, install_debian, program};
use std::path::{Path, PathBuf};

pub(crate) const PYTHON: &str = ".venv/bin/python";
/// Folder for the packages of the other languages; git ignores it.
const INSTALLED: &str = ".clients";

type PreparedProgram = Result<ClientProgram, StepOutcome>;

pub(super) fn pymemcache() -> PreparedProgram {
    python("pymemcache", "pymemcache", &[])
}

pub(super) fn pylibmc() -> PreparedProgram {
    python("pylibmc", "pylibmc", &["libmemcached-dev", "zlib1g-dev", "gcc", "libc6-dev"])
}

pub(super) fn python_memcached() -> PreparedProgram {
    python("python-memcached", "memcache", &[])
}

pub(super) fn aiomcache() -> PreparedProgram {
    python("aiomcache", "aiomcache", &[])
}

/// pymemcache over TLS, with Python's OpenSSL.
pub(super) fn tls() -> PreparedProgram {
    pip("pymemcache", "pymemcache", &[])?;
    Ok(pytest("tls"))
}

/// Creates a self-signed certificate and its key.
pub(super) fn certificate() -> Result<(PathBuf, PathBuf), StepOutcome> {
    certificate_in(&Path::new(INSTALLED).join("tls"))
}

/// Creates a self-signed certificate and its key in `folder`, which the caller does not share.
pub(crate) fn certificate_in(folder: &Path) -> Result<(PathBuf, PathBuf), StepOutcome> {
    require(|| program("openssl", &["version"]).succeeds(), "openssl", &["openssl"])?;
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let paths = certificate.to_str().zip(key.to_str());
    let made = std::fs::create_dir_all(folder).is_ok()
        && paths.is_some_and(|(certificate, key)| {
            let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
                         -addext subjectAltName=DNS:localhost,IP:127.0.0.1";
            let words: Vec<&str> = words.split_whitespace().chain(["-out", certificate, "-keyout", key]).collect();
            program("openssl", &words).succeeds()
        });
    if made {
        Ok((certificate, key))
    } else {
        Err(StepOutcome::Failed("openssl: created no certificate".into()))
    }
}

/// Installs a package with pip. `headers` are the Debian packages that its build may need.
fn python(package: &str, module: &str, headers: &[&str]) -> PreparedProgram {
    pip(package, module, headers)?;
    Ok(pytest(&package.replace('-', "_")))
}

/// Installs a package and pytest into the project's own Python environment.
pub(crate) fn pip(package: &str, module: &str, headers: &[&str]) -> Result<(), StepOutcome> {
    if !Path::new(PYTHON).exists() {
        let made = || program("python3", &["-m", "venv", ".venv"]).succeeds();
        require(made, "a python3 with venv", &["python3", "python3-venv"])?;
    }
    let install = || {
        let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pytest", package];
        program(PYTHON, &words).succeeds()
    };
    let has = program(PYTHON, &["-c", &format!("import {module}, pytest")]).succeeds();
    let is_there = has || install() || (!headers.is_empty() && install_debian(headers) && install());
    if !is_there {
        return Err(StepOutcome::Skipped(format!("{package}: cannot be installed with pip")));
    }
    Ok(())
}

fn pytest(name: &str) -> ClientProgram {
    let file = format!("tests/clients/python/{name}_test.py");
    let words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", &file];
    ClientProgram::runner(PYTHON, &words).env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Go's client, from the module proxy.
pub(super) fn gomemcache() -> PreparedProgram {
    require(|| program("go", &["version"]).succeeds(), "go", &["golang-go"])?;
    let go = |words: &[&str]| {
        // The user's own Go settings and packages stay untouched, and no newer toolchain is
        // downloaded.
        let settings = [("GOTOOLCHAIN", "local"), ("GOFLAGS", "-modcacherw"), ("GOWORK", "off")];
        let folders = [("GOPATH", "go"), ("GOMODCACHE", "go/modules"), ("GOCACHE", "go/cache")];
        // The oldest supported Go has no `go -C`.
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
        return Err(StepOutcome::Skipped("gomemcache: cannot be installed with go".into()));
    }
    let executable = installed("go/gomemcache");
    match go(&["build", "-o", &executable, "."]).run() {
        StepOutcome::Passed => Ok(ClientProgram::new(executable, &[])),
        ending => Err(ending),
    }
}

/// Java's client, from Maven's repository.
pub(super) fn spymemcached() -> PreparedProgram {
    java("Spymemcached.java")
}

/// The client above, with a login.
pub(super) fn spymemcached_login() -> PreparedProgram {
    java("SpymemcachedLogin.java")
}

fn java(file: &str) -> PreparedProgram {
    const JAR: &str = "java/spymemcached-2.12.3.jar";
    const JDK: &str = "default-jdk-headless";
    // Running a source file needs a JDK; a JRE is not enough.
    let java = || program("javac", &["--version"]).succeeds();
    require(java, "JDK", &[JDK])?;
    if !Path::new(&installed(JAR)).exists() {
        require(|| program("mvn", &["--version"]).succeeds(), "maven", &["maven", JDK])?;
        let repository = format!("-Dmaven.repo.local={}", installed("maven"));
        let output = format!("-DoutputDirectory={}", installed("java"));
        let project = ["--batch-mode", "--quiet", "--file", "tests/clients/java/pom.xml"];
        let copy = ["dependency:copy-dependencies", &repository, &output];
        if !program("mvn", &[&project[..], &copy].concat()).succeeds() {
            return Err(StepOutcome::Skipped("spymemcached: cannot be installed with maven".into()));
        }
    }
    Ok(ClientProgram::new("java", &["-cp", &installed(JAR), &format!("tests/clients/java/{file}")]))
}

/// Node's client, from npm.
pub(super) fn memjs() -> PreparedProgram {
    node("memjs.js")
}

/// The client above, with a login.
pub(super) fn memjs_login() -> PreparedProgram {
    node("memjs_login.js")
}

fn node(file: &str) -> PreparedProgram {
    let modules = npm("memjs@1.3.2")?;
    Ok(ClientProgram::new("node", &[&format!("tests/clients/node/{file}")]).env("NODE_PATH", &modules))
}

/// Installs a package, given as `NAME@VERSION`, without running its scripts. Returns the folder of
/// all packages.
pub(crate) fn npm(package: &str) -> Result<String, StepOutcome> {
    let (name, version) = package.split_once('@').unwrap_or((package, ""));
    let (folder, modules) = (installed("node"), installed("node/node_modules"));
    require(|| program("node", &["--version"]).succeeds(), "node", &["nodejs"])?;
    let manifest = std::fs::read_to_string(format!("{modules}/{name}/package.json")).unwrap_or_default();
    if !manifest.contains(&format!("\"version\": \"{version}\"")) {
        require(|| program("npm", &["--version"]).succeeds(), "npm", &["npm"])?;
        let words = ["install", "--ignore-scripts", "--no-audit", "--prefix", &folder, package];
        if !program("npm", &words).succeeds() {
            return Err(StepOutcome::Skipped(format!("{name}: cannot be installed with npm")));
        }
    }
    Ok(modules)
}

/// Ruby's client, from Debian; Debian 12 has version 3.
pub(super) fn dalli() -> PreparedProgram {
    ruby("dalli.rb", BINARY_DALLI.0, BINARY_DALLI.1)
}

/// The client above, with a login.
pub(super) fn dalli_login() -> PreparedProgram {
    ruby("dalli_login.rb", BINARY_DALLI.0, BINARY_DALLI.1)
}

/// The versions of Dalli that support the binary protocol, and the reason for skipping others.
const BINARY_DALLI: (&str, &str) =
    ("Dalli::VERSION.to_i < 5", "this version of Dalli does not support the binary protocol");

/// Dalli with meta commands, from version 4 on. Version 3.2 takes a line end in a value for the end
/// of the value.
pub(super) fn dalli_meta() -> PreparedProgram {
    ruby("dalli.rb", "Dalli::VERSION.to_i >= 4", "this version of Dalli is too old for meta commands")
}

/// Prepares Dalli if the Ruby expression `condition` is true.
fn ruby(file: &str, condition: &str, why_not: &str) -> PreparedProgram {
    let holds =
        |condition: &str| program("ruby", &["-e", &format!("require 'dalli'; exit({condition})")]).succeeds();
    require(|| holds("true"), "ruby with dalli", &["ruby", "ruby-dalli"])?;
    if !holds(condition) {
        return Err(StepOutcome::Skipped(why_not.into()));
    }
    Ok(ClientProgram::new("ruby", &[&format!("tests/clients/ruby/{file}")]))
}

/// Perl's client, from Debian.
pub(super) fn cache_memcached_fast() -> PreparedProgram {
    let has = || program("perl", &["-MCache::Memcached::Fast", "-e", "1"]).succeeds();
    require(has, "perl with Cache::Memcached::Fast", &["perl", "libcache-memcached-fast-perl"])?;
    Ok(ClientProgram::new("perl", &["tests/clients/perl/cache_memcached_fast.pl"]))
}

/// PHP's client, from Debian.
pub(super) fn php_memcached() -> PreparedProgram {
    php("php_memcached.php")
}

/// The client above, with a login.
pub(super) fn php_memcached_login() -> PreparedProgram {
    let client = php("php_memcached_login.php")?;
    let has = || program("php", &["-r", "exit(Memcached::HAVE_SASL ? 0 : 1);"]).succeeds();
    require(has, "php-memcached with SASL", &["libsasl2-modules"])?;
    Ok(client)
}

fn php(file: &str) -> PreparedProgram {
    let has = || program("php", &["-r", "exit(extension_loaded('memcached') ? 0 : 1);"]).succeeds();
    require(has, "php with memcached", &["php-cli", "php-memcached"])?;
    Ok(ClientProgram::new("php", &[&format!("tests/clients/php/{file}")]))
}

/// Installs the Debian packages if `has` returns false, and skips the step if it still does.
pub(crate) fn require(has: impl Fn() -> bool, what: &str, packages: &[&str]) -> Result<(), StepOutcome> {
    if has() || (install_debian(packages) && has()) {
        return Ok(());
    }
    Err(StepOutcome::Skipped(format!("{what}: not installed (Debian: {})", packages.join(" "))))
}

/// Returns the full path of an installed package.
fn installed(name: &str) -> String {
    let path = Path::new(INSTALLED).join(name);
    std::path::absolute(&path).unwrap_or(path).display().to_string()
}
