//! The blocks of README.md, run as they stand: what a newcomer pastes must work.

use crate::clients::{PYTHON, Server};
use crate::step::{Outcome, PROFILE, Report, SHARED_BUILD, built, patient, program};

/// The address that the README's examples name.
const ADDRESS: &str = "127.0.0.1:11311";

pub(crate) fn run(report: &mut Report) {
    report.step("readme: shell", shell);
    report.step("readme: python", python);
}

/// The blocks marked with `language`, each with the number of its first line.
pub(crate) fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line == format!("```{language}") {
            let block: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            blocks.push((number + 2, block.join("\n")));
        }
    }
    blocks
}

/// A block as a script that stops at the first line that fails, or does not print what its comment promises.
fn script(first_line: usize, block: &str) -> String {
    // What runs in the background ends with the script, however that ends.
    let mut script = String::from("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    for (number, line) in block.lines().enumerate() {
        let (command, comment) = line.split_once("  #").unwrap_or((line, ""));
        let command = command.trim_end();
        let place = format!("README.md:{}", first_line + number);
        script.push_str(&format!("echo '{place}: {}'\n", command.replace('\'', "'\\''")));
        match comment.trim().strip_prefix("prints: ") {
            Some(promise) => script.push_str(&format!(
                "printed=$({command}); echo \"$printed\"\n\
                 case \"$printed\" in *'{promise}'*) ;; *) echo '{place} does not print {promise}'; exit 1 ;; esac\n"
            )),
            None => {
                script.push_str(command);
                script.push('\n');
            }
        }
        if command.ends_with('&') {
            // A reader takes longer for the next line than the server for its start; the script does not.
            script.push_str(
                "for try in $(seq 200); do todana ping > /dev/null 2>&1 && break; kill -0 $!; sleep 0.05; done\n\
                 todana ping > /dev/null\n",
            );
        }
    }
    script
}

/// The tour, on a Unix socket instead of its port, which may be in use, and with the executable of the other steps: that of the release
/// takes some minutes more to build.
fn shell() -> Outcome {
    let text = match std::fs::read_to_string("README.md") {
        Ok(text) => text,
        Err(error) => return Outcome::Failed(format!("cannot read README.md: {error}")),
    };
    let blocks = blocks(&text, "sh");
    if blocks.is_empty() {
        return Outcome::Failed("README.md has no block marked sh".into());
    }
    let socket = std::env::temp_dir().join(format!("todana-readme-{}.socket", std::process::id()));
    let server = format!("unix:{}", socket.display());
    let outcome = blocks
        .iter()
        .map(|(line, block)| {
            let block = block
                .replace(ADDRESS, &server)
                .replace("build --release", &SHARED_BUILD.join(" "))
                .replace("target/release", &format!("target/{PROFILE}"));
            patient("bash", &["-c", &script(*line, &block)])
                .env("TODANA_UNIX_SOCKET", &socket.display().to_string())
                .env("TODANA_SERVER", &server)
                .path_first(&built(""))
                .run()
        })
        .find(|outcome| !matches!(outcome, Outcome::Passed));
    let _ = std::fs::remove_file(&socket);
    outcome.unwrap_or(Outcome::Passed)
}

fn python() -> Outcome {
    if !program(PYTHON, &["-c", "import pymemcache"]).succeeds() {
        return Outcome::Skipped("pymemcache is not installed".into());
    }
    let text = std::fs::read_to_string("README.md").unwrap_or_default();
    let blocks = blocks(&text, "python");
    let server = match Server::start(&[]) {
        Ok(server) => server,
        Err(error) => return Outcome::Failed(error),
    };
    for (line, block) in blocks {
        if !block.contains(ADDRESS) {
            return Outcome::Failed(format!("README.md:{line}: the block does not name {ADDRESS}"));
        }
        let outcome = patient(PYTHON, &["-c", &block.replace(ADDRESS, &server.address)]).run();
        if !matches!(outcome, Outcome::Passed) {
            return outcome;
        }
    }
    Outcome::Passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_language_and_line() {
        let text = "a\n```sh\nx\ny\n```\nb\n```python\nz\n```\n```sh\nw\n```\n";
        assert_eq!(blocks(text, "sh"), [(3, "x\ny".into()), (11, "w".into())]);
        assert_eq!(blocks(text, "python"), [(8, "z".into())]);
    }

    #[test]
    fn a_broken_promise_fails() {
        let run = |block: &str| program("bash", &["-c", &script(1, block)]).succeeds();
        assert!(run("echo 42  # prints: 42\nPATH=$PATH  # or not"));
        assert!(!run("echo 43  # prints: 42"));
        assert!(!run("false\ntrue"));
    }
}
