//! The C library: its header, its installation, and C programs that use the installed library.

use crate::pages::blocks;
use crate::step::{
    SHARED_BUILD, StepOutcome, StepReport, built, cargo, program, target_directory, with_time_limit,
};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = "bindings/c/include/todana.h";
const TESTS: [&str; 4] = ["todana", "tables", "exit", "killed"];
/// The shared library's name, as in `bindings/c/build.rs`.
const SONAME: &str = "libtodana.so.0";

/// Regenerates the header.
pub(crate) fn header() -> StepOutcome {
    match generated_header() {
        Ok(text) => match fs::write(HEADER, text) {
            Ok(()) => StepOutcome::Passed,
            Err(error) => StepOutcome::Failed(format!("{HEADER}: cannot write: {error}")),
        },
        Err(why) => StepOutcome::Failed(why),
    }
}

/// Builds the library with the release profile and installs it into `prefix`.
pub(crate) fn install(prefix: &Path) -> StepOutcome {
    let built = cargo(&["build", "--release", "--package", "todana-c"]).run();
    if !matches!(built, StepOutcome::Passed) {
        return built;
    }
    match install_files(&target_directory().join("release"), prefix) {
        Ok(()) => {
            println!("installed into {}; to use it with pkg-config, set", prefix.display());
            println!("PKG_CONFIG_PATH={}", prefix.join("lib/pkgconfig").display());
            StepOutcome::Passed
        }
        Err(error) => StepOutcome::Failed(format!("{}: cannot install: {error}", prefix.display())),
    }
}

/// Checks that the header matches the sources, and runs C programs with the installed library.
pub(crate) fn run(report: &mut StepReport) {
    report.step("c: header", || match (generated_header(), fs::read_to_string(HEADER)) {
        (Ok(generated), Ok(committed)) if generated == committed => StepOutcome::Passed,
        (Ok(_), _) => {
            StepOutcome::Failed(format!("{HEADER}: differs from the sources; run `cargo xtask header`"))
        }
        (Err(why), _) => StepOutcome::Failed(why),
    });
    report.step("c: programs", || match programs() {
        Ok(()) => StepOutcome::Passed,
        Err(outcome) => outcome,
    });
}

/// Generates the header with a tool that has its own workspace, because only this task needs it.
fn generated_header() -> Result<String, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet", "--locked", "--manifest-path", "bindings/c/header/Cargo.toml"])
        .env("CARGO_TARGET_DIR", target_directory().join("header"))
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("{HEADER}: cannot be generated: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{HEADER}: the generated header is not UTF-8"))
}

/// Copies a built library, its header, and a pkg-config file into `prefix`.
fn install_files(built: &Path, prefix: &Path) -> io::Result<()> {
    let prefix = std::path::absolute(prefix)?;
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    fs::create_dir_all(&include)?;
    fs::create_dir_all(lib.join("pkgconfig"))?;
    fs::copy(HEADER, include.join("todana.h"))?;
    fs::copy(built.join("libtodana_c.a"), lib.join("libtodana.a"))?;
    let (named, link) = (lib.join(SONAME), lib.join("libtodana.so"));
    for old in [&named, &link] {
        // The old file is removed, not overwritten, because a running program may have it mapped.
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

fn programs() -> Result<(), StepOutcome> {
    let failed = |error: io::Error| StepOutcome::Failed(error.to_string());
    for tool in ["cc", "pkg-config"] {
        if !program(tool, &["--version"]).succeeds() {
            return Err(StepOutcome::Skipped(format!("{tool} is not installed")));
        }
    }
    require_passed(cargo(&SHARED_BUILD).run())?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let prefix = folder.path().join("installed");
    install_files(&built("deps"), &prefix).map_err(failed)?;
    let compiler = CCompiler { folder: folder.path().into(), prefix };

    for name in TESTS {
        let test = compiler.compile(&format!("bindings/c/tests/{name}.c"), name, "")?;
        compiler.run(&test, ".", "")?;
    }
    if compiler.compile_text("int main(void) { return 0; }", "empty", "-fsanitize=address,undefined").is_ok()
    {
        for name in TESTS {
            let (source, name) = (format!("bindings/c/tests/{name}.c"), format!("{name}-sanitized"));
            let test = compiler.compile(&source, &name, "-fsanitize=address,undefined")?;
            compiler.run(&test, ".", "")?;
        }
    } else {
        println!("skipped: cc has no AddressSanitizer here");
    }

    let text = "the cat and the dog\nThe end\n";
    let expected = "5 different words\n     3 the\n     1 ";
    for (example, argument) in [("word_count", "words.tree"), ("frequencies", ".")] {
        for (kind, flags) in [("shared", ""), ("static", "-static")] {
            let source = format!("bindings/c/examples/{example}.c");
            let program = compiler.compile(&source, &format!("{example}-{kind}"), flags)?;
            let printed = compiler.run(&program, argument, text)?;
            if !printed.starts_with(expected) {
                return Err(StepOutcome::Failed(format!("{example} ({kind}) printed {printed:?}")));
            }
        }
    }
    let address_book = compiler.compile("bindings/c/examples/address_book.c", "address_book", "")?;
    compiler.run(&address_book, "people.table", "Zed\tOslo\tchess\nAnn\tOslo\tdogs\nBob\tRome\t\n")?;
    let printed = compiler.run(&address_book, "people.table Oslo", "")?;
    if printed != "Ann: dogs\nZed: chess\n" {
        return Err(StepOutcome::Failed(format!("address_book printed {printed:?}")));
    }
    let guide = fs::read_to_string("docs/c.md").map_err(failed)?;
    let programs = blocks(&guide, "c");
    if programs.is_empty() {
        return Err(StepOutcome::Failed("docs/c.md: no block is marked `c`".into()));
    }
    for (line, block) in programs {
        println!("docs/c.md:{line}");
        let program = compiler.compile_text(&block, &format!("guide-{line}"), "")?;
        compiler.run(&program, "", "")?;
    }
    Ok(())
}

struct CCompiler {
    folder: PathBuf,
    prefix: PathBuf,
}

impl CCompiler {
    fn compile_text(&self, text: &str, name: &str, flags: &str) -> Result<PathBuf, StepOutcome> {
        let source = self.folder.join(name).with_extension("c");
        fs::write(&source, text).map_err(|error| StepOutcome::Failed(error.to_string()))?;
        self.compile(&source.display().to_string(), name, flags)
    }

    /// Compiles a program as docs/c.md describes. `-static` links only Todana's library statically.
    fn compile(&self, source: &str, name: &str, flags: &str) -> Result<PathBuf, StepOutcome> {
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
        require_passed(self.shell(&line).run())?;
        Ok(program)
    }

    /// Runs a program in a folder of its own and returns its output.
    fn run(&self, program: &Path, argument: &str, input: &str) -> Result<String, StepOutcome> {
        let own = program.with_extension("folder");
        let (from, to) = (program.with_extension("in"), program.with_extension("out"));
        let prepared = fs::create_dir_all(&own).and_then(|()| fs::write(&from, input));
        prepared.map_err(|error| StepOutcome::Failed(error.to_string()))?;
        let line = format!(
            "cd '{}' && '{}' {argument} < '{}' > '{}'",
            own.display(),
            program.display(),
            from.display(),
            to.display()
        );
        require_passed(self.shell(&line).run())?;
        let printed = fs::read(to).map_err(|error| StepOutcome::Failed(error.to_string()))?;
        // Output may be binary: the guide prints a snapshot.
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    fn shell(&self, line: &str) -> crate::step::StepCommand {
        let lib = self.prefix.join("lib");
        with_time_limit("sh", &["-c", line])
            .env("PKG_CONFIG_PATH", &lib.join("pkgconfig").display().to_string())
            .env("LD_LIBRARY_PATH", &lib.display().to_string())
    }
}

fn require_passed(outcome: StepOutcome) -> Result<(), StepOutcome> {
    match outcome {
        StepOutcome::Passed => Ok(()),
        other => Err(other),
    }
}
