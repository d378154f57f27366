//! The C library: its header, its installation, and programs in C that use it as it is installed.

use crate::pages::blocks;
use crate::step::{Outcome, Report, SHARED_BUILD, built, cargo, patient, program, target_directory};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = "bindings/c/include/todana.h";
const TESTS: [&str; 3] = ["todana", "exit", "killed"];
/// As build.rs of the library has it.
const SONAME: &str = "libtodana.so.0";

/// Makes the header anew.
pub(crate) fn header() -> Outcome {
    match made_header() {
        Ok(text) => match fs::write(HEADER, text) {
            Ok(()) => Outcome::Passed,
            Err(error) => Outcome::Failed(format!("cannot write {HEADER}: {error}")),
        },
        Err(why) => Outcome::Failed(why),
    }
}

/// Builds the library as it is released, and puts it below `prefix`.
pub(crate) fn install(prefix: &Path) -> Outcome {
    let built = cargo(&["build", "--release", "--package", "todana-c"]).run();
    if !matches!(built, Outcome::Passed) {
        return built;
    }
    match place(&target_directory().join("release"), prefix) {
        Ok(()) => {
            println!("installed below {}; with pkg-config from", prefix.display());
            println!("PKG_CONFIG_PATH={}", prefix.join("lib/pkgconfig").display());
            Outcome::Passed
        }
        Err(error) => Outcome::Failed(format!("cannot install below {}: {error}", prefix.display())),
    }
}

/// The header is that of the sources; C programs run against the library as it is installed.
pub(crate) fn run(report: &mut Report) {
    report.step("c: header", || match (made_header(), fs::read_to_string(HEADER)) {
        (Ok(made), Ok(there)) if made == there => Outcome::Passed,
        (Ok(_), _) => Outcome::Failed(format!("{HEADER} is not that of the sources: cargo xtask header")),
        (Err(why), _) => Outcome::Failed(why),
    });
    report.step("c: programs", || match programs() {
        Ok(()) => Outcome::Passed,
        Err(outcome) => outcome,
    });
}

/// The tool stands in a workspace of its own, as nobody but this task needs it.
fn made_header() -> Result<String, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet", "--locked", "--manifest-path", "bindings/c/header/Cargo.toml"])
        .env("CARGO_TARGET_DIR", target_directory().join("header"))
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the header cannot be made: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|_| "the header is no text".into())
}

/// Puts a library that was built below a prefix, with header and pkg-config file.
fn place(built: &Path, prefix: &Path) -> io::Result<()> {
    let prefix = std::path::absolute(prefix)?;
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    fs::create_dir_all(&include)?;
    fs::create_dir_all(lib.join("pkgconfig"))?;
    fs::copy(HEADER, include.join("todana.h"))?;
    fs::copy(built.join("libtodana_c.a"), lib.join("libtodana.a"))?;
    let (named, link) = (lib.join(SONAME), lib.join("libtodana.so"));
    for old in [&named, &link] {
        // Not written over: a program that runs has it mapped.
        match fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::copy(built.join("libtodana_c.so"), &named)?;
    symlink(SONAME, link)?;
    let pc = fs::read_to_string("bindings/c/todana.pc.in")?
        .replace("@PREFIX@", &prefix.display().to_string())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    fs::write(lib.join("pkgconfig/todana.pc"), pc)
}

fn programs() -> Result<(), Outcome> {
    let failed = |error: io::Error| Outcome::Failed(error.to_string());
    for tool in ["cc", "pkg-config"] {
        if !program(tool, &["--version"]).succeeds() {
            return Err(Outcome::Skipped(format!("{tool} is not installed")));
        }
    }
    must(cargo(&SHARED_BUILD).run())?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let prefix = folder.path().join("installed");
    place(&built("deps"), &prefix).map_err(failed)?;
    let c = Compiler { folder: folder.path().into(), prefix };

    for name in TESTS {
        let test = c.compile(&format!("bindings/c/tests/{name}.c"), name, "")?;
        c.run(&test, ".", "")?;
    }
    if c.compile_text("int main(void) { return 0; }", "empty", "-fsanitize=address,undefined").is_ok() {
        for name in TESTS {
            let (source, name) = (format!("bindings/c/tests/{name}.c"), format!("{name}-sanitized"));
            let test = c.compile(&source, &name, "-fsanitize=address,undefined")?;
            c.run(&test, ".", "")?;
        }
    } else {
        println!("skipped: cc has no AddressSanitizer here");
    }

    let text = "the cat and the dog\nThe end\n";
    let expected = "5 different words\n     3 the\n     1 ";
    for (example, argument) in [("word_count", "words.tree"), ("frequencies", ".")] {
        for (kind, flags) in [("shared", ""), ("static", "-static")] {
            let source = format!("bindings/c/examples/{example}.c");
            let program = c.compile(&source, &format!("{example}-{kind}"), flags)?;
            let printed = c.run(&program, argument, text)?;
            if !printed.starts_with(expected) {
                return Err(Outcome::Failed(format!("{example} ({kind}) printed {printed:?}")));
            }
        }
    }
    let guide = fs::read_to_string("docs/c.md").map_err(failed)?;
    let programs = blocks(&guide, "c");
    if programs.is_empty() {
        return Err(Outcome::Failed("docs/c.md has no block marked c".into()));
    }
    for (line, block) in programs {
        println!("docs/c.md:{line}");
        let program = c.compile_text(&block, &format!("guide-{line}"), "")?;
        c.run(&program, "", "")?;
    }
    Ok(())
}

struct Compiler {
    folder: PathBuf,
    prefix: PathBuf,
}

impl Compiler {
    fn compile_text(&self, text: &str, name: &str, flags: &str) -> Result<PathBuf, Outcome> {
        let source = self.folder.join(name).with_extension("c");
        fs::write(&source, text).map_err(|error| Outcome::Failed(error.to_string()))?;
        self.compile(&source.display().to_string(), name, flags)
    }

    /// Compiles as the guide says it is done. `-static` links only our library so.
    fn compile(&self, source: &str, name: &str, flags: &str) -> Result<PathBuf, Outcome> {
        let program = self.folder.join(name);
        let (flags, libraries) = match flags {
            "-static" => {
                ("", "$(pkg-config --static --cflags --libs todana | sed s/-ltodana/-l:libtodana.a/)")
            }
            _ => (flags, "$(pkg-config --cflags --libs todana)"),
        };
        let line = format!(
            "cc -std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Wpedantic -Werror {flags} '{source}' -o '{}' -pthread {libraries}",
            program.display(),
        );
        must(self.shell(&line).run())?;
        Ok(program)
    }

    /// Runs a program in a folder of its own; what it has printed.
    fn run(&self, program: &Path, argument: &str, input: &str) -> Result<String, Outcome> {
        let own = program.with_extension("folder");
        let (from, to) = (program.with_extension("in"), program.with_extension("out"));
        let prepared = fs::create_dir_all(&own).and_then(|()| fs::write(&from, input));
        prepared.map_err(|error| Outcome::Failed(error.to_string()))?;
        let line = format!(
            "cd '{}' && '{}' {argument} < '{}' > '{}'",
            own.display(),
            program.display(),
            from.display(),
            to.display()
        );
        must(self.shell(&line).run())?;
        let printed = fs::read(to).map_err(|error| Outcome::Failed(error.to_string()))?;
        // The guide's snapshot, for one, is no text.
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    fn shell(&self, line: &str) -> crate::step::Run {
        let lib = self.prefix.join("lib");
        patient("sh", &["-c", line])
            .env("PKG_CONFIG_PATH", &lib.join("pkgconfig").display().to_string())
            .env("LD_LIBRARY_PATH", &lib.display().to_string())
    }
}

fn must(outcome: Outcome) -> Result<(), Outcome> {
    match outcome {
        Outcome::Passed => Ok(()),
        other => Err(other),
    }
}
