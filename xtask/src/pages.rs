//! Runs the code blocks of README.md and of the pages in docs/, so that pasted commands work.
//!
//! ```text
//! sh        commands; `command  # prints: TEXT` fails unless the output contains TEXT
//! console   commands after `$ `, then their output; a line `...` stands for any lines, and
//!           `...` within a line for any text
//! ```
//!
//! All such blocks of a page are run as one script, in a new folder. A block that cannot run has
//! the reason in its first line: `sh not-run: needs root`. Ports and absolute paths are replaced,
//! so that the script does not touch any other server.
//!
//! Not here: Rust (doctests of `todana`), C (`c.rs`), docs/python.md (its binding's tests), the
//! pages on moving from Kyoto Tycoon and Tokyo Tyrant (`cli/tests/all/moving.rs`).

use crate::clients::{PYTHON, TestServer, pip};
use crate::step::{SHARED_BUILD, StepOutcome, StepReport, built, install_debian, program, with_time_limit};
use regex::Regex;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

/// The server address in the examples of clients.
const ADDRESS: &str = "127.0.0.1:11311";
/// The TCP ports that pages may use; the monitoring pages are 10000 above each.
const PORTS: [&str; 6] = ["11311", "11312", "11313", "1978", "1979", "4318"];
/// The folders in which absolute paths of pages may lie.
const ROOTS: [&str; 4] = ["/var/lib/", "/backup/", "/etc/", "/run/"];
/// Pages that other tests run.
const RUN_ELSEWHERE: [&str; 2] = ["docs/replacing-kyoto-tycoon.md", "docs/moving-from-tokyo-tyrant.md"];
/// Programs that must not appear in an indented block, because such a block is not run.
const PROGRAMS: [&str; 9] =
    ["todana", "memcached", "ktserver", "ttserver", "cargo", "curl", "pip", "python", "ln"];
/// Separates the outputs of commands. No command of a page prints this byte.
const MARK: char = '\u{1e}';

pub(crate) fn run(report: &mut StepReport) {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap_or_default();
        if commands(&page, &text).is_ok_and(|commands| commands.is_empty()) {
            continue;
        }
        report.step(&format!("pages: {}", page.display()), || shell(&page, &text));
    }
    report.step("pages: python", || {
        let installed = pip("pymemcache", "pymemcache", &[]).and_then(|()| pip("django", "django", &[]));
        installed.map_or_else(|outcome| outcome, |()| clients("python", PYTHON, "-c"))
    });
    report.step("pages: ruby", || {
        let has = || program("ruby", &["-e", "require 'active_support'; require 'dalli'"]).succeeds();
        match has() || (install_debian(&["ruby", "ruby-dalli", "ruby-activesupport"]) && has()) {
            true => clients("ruby", "ruby", "-e"),
            false => StepOutcome::Skipped("Ruby, Dalli or Active Support: not installed".into()),
        }
    });
    report.step("pages: php", || {
        let has = || program("php", &["-r", "exit(extension_loaded('memcached') ? 0 : 1);"]).succeeds();
        match has() || (install_debian(&["php-cli", "php-memcached"]) && has()) {
            true => clients("php", "php", "-r"),
            false => StepOutcome::Skipped("PHP or its extension memcached: not installed".into()),
        }
    });
}

/// README.md and the pages of docs/, except those that other tests run.
fn pages() -> Vec<PathBuf> {
    let in_docs =
        std::fs::read_dir("docs").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut pages: Vec<PathBuf> = in_docs
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .filter(|path| !RUN_ELSEWHERE.iter().any(|page| path == Path::new(page)))
        .collect();
    pages.sort();
    pages.insert(0, "README.md".into());
    pages
}

/// A fenced block of a page.
#[derive(Debug, PartialEq, Eq)]
struct CodeBlock<'a> {
    /// The number of its first line of content.
    line: usize,
    language: &'a str,
    /// The reason why the block is not run, or an empty string if it is run.
    not_run: &'a str,
    content: Vec<&'a str>,
}

fn fenced(text: &str) -> Vec<CodeBlock<'_>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let (language, note) = info.split_once(' ').unwrap_or((info, ""));
        let content = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let not_run = note.strip_prefix("not-run: ").unwrap_or_default();
        blocks.push(CodeBlock { line: number + 2, language, not_run, content });
    }
    blocks
}

/// Returns the blocks of a language, each with the number of its first line.
pub(crate) fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let of_language = fenced(text).into_iter().filter(|block| block.language == language);
    of_language
        .filter(|block| block.not_run.is_empty())
        .map(|block| (block.line, block.content.join("\n")))
        .collect()
}

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
struct PageCommand {
    /// `PAGE:LINE`.
    place: String,
    text: String,
    /// The lines of the output, if the page shows them.
    expected: Option<Vec<String>>,
}

/// Returns the commands of a page in their order. Fails if a block is neither run nor marked.
fn commands(page: &Path, text: &str) -> Result<Vec<PageCommand>, String> {
    let mut commands = Vec::new();
    let mut is_fenced = false;
    for (number, line) in text.lines().enumerate() {
        is_fenced ^= line.starts_with("```");
        let word = line.trim_start().split(' ').next().unwrap_or_default();
        let is_opening = page.ends_with("README.md") && number < 12;
        if !is_fenced && line.starts_with("    ") && PROGRAMS.contains(&word) && !is_opening {
            return Err(format!(
                "{}:{}: command in an indented block, which is not run; use a fenced block",
                page.display(),
                number + 1
            ));
        }
    }
    for block in fenced(text).iter().filter(|block| block.not_run.is_empty()) {
        match block.language {
            "sh" => commands.extend(script_commands(page, block)),
            "console" => commands.extend(console_commands(page, block)?),
            "" => return Err(format!("{}:{}: code block has no language", page.display(), block.line - 1)),
            _ => {}
        }
    }
    match commands.iter().find(|command| command.text.contains("11211")) {
        Some(command) => Err(format!("{}: port 11211 may belong to another server", command.place)),
        None => Ok(commands),
    }
}

/// Fails if a command uses a port of this machine that is not replaced by a free one.
fn expect_named_ports(commands: &[PageCommand]) -> Result<(), String> {
    let pattern = r"(?:-p|-\w*port|port =)[ =]+(\d+)|(?:127\.0\.0\.1|localhost|\[::1\])[:/](\d+)";
    let pattern = Regex::new(pattern).expect("a correct pattern");
    // The system chooses the port 0.
    let is_known = |port: u32| {
        port == 0
            || PORTS.iter().any(|named| {
                let named: u32 = named.parse().unwrap_or_default();
                [named, named + 10_000].contains(&port)
            })
    };
    for command in commands {
        for found in pattern.captures_iter(&command.text) {
            let port = found.get(1).or(found.get(2)).map_or("", |port| port.as_str());
            if !port.parse().is_ok_and(is_known) {
                let ports = PORTS.join(", ");
                return Err(format!(
                    "{}: port {port} is not replaced by a free one; use one of {ports}, or extend PORTS in xtask/src/pages.rs",
                    command.place
                ));
            }
        }
    }
    Ok(())
}

fn place(page: &Path, line: usize) -> String {
    format!("{}:{line}", page.display())
}

/// Joins lines that end in a backslash, and those of a here-document.
fn script_commands(page: &Path, block: &CodeBlock<'_>) -> Vec<PageCommand> {
    let mut commands = Vec::new();
    let mut lines = block.content.iter().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (command, comment) = line.split_once("  #").unwrap_or((line, ""));
        let mut text = command.trim_end().to_string();
        if let Some((_, word)) = command.split_once("<<") {
            let end = word.trim_matches(['\'', ' ']);
            for (_, line) in lines.by_ref() {
                text = format!("{text}\n{line}");
                if *line == end {
                    break;
                }
            }
        }
        while text.ends_with('\\') {
            let Some((_, line)) = lines.next() else { break };
            text = format!("{text}\n{line}");
        }
        let promise = comment.trim().strip_prefix("prints: ");
        let expected = promise.map(|promise| vec!["...".into(), format!("...{promise}..."), "...".into()]);
        commands.push(PageCommand { place: place(page, block.line + number), text, expected });
    }
    commands
}

fn console_commands(page: &Path, block: &CodeBlock<'_>) -> Result<Vec<PageCommand>, String> {
    let mut commands: Vec<PageCommand> = Vec::new();
    for (number, line) in block.content.iter().enumerate() {
        let place = place(page, block.line + number);
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(text), _) => commands.push(PageCommand { place, text: text.into(), expected: None }),
            (None, Some(command)) if command.text.ends_with('\\') => {
                command.text = format!("{}\n{line}", command.text);
            }
            (None, Some(command)) => command.expected.get_or_insert_default().push(line.to_string()),
            (None, None) => return Err(format!("{place}: output without a command")),
        }
    }
    Ok(commands)
}

/// Returns true if the lines are those expected, where `...` stands for any lines or any text.
fn matches(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..]))
        }
        Some((first, rest)) => lines
            .split_first()
            .is_some_and(|(line, others)| line_matches(first, line) && matches(rest, others)),
    }
}

fn line_matches(expected: &str, line: &str) -> bool {
    let Some((before, after)) = expected.split_once("...") else { return expected == line.trim_end() };
    let Some(rest) = line.strip_prefix(before) else { return false };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| line_matches(after, &rest[at..]))
}

/// Returns a script that runs the commands, each output after its number, and that stops at the
/// first failure.
fn script(commands: &[PageCommand]) -> String {
    // Background processes end with the script, however that ends.
    let mut script = String::from("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    for (number, command) in commands.iter().enumerate() {
        script.push_str(&format!("printf '{MARK}{number}\\n'\n"));
        if let Some(server) = command.text.strip_suffix('&') {
            // The script waits for the server; a reader is slower than the server's start.
            let is_up = match ports_in(server).first() {
                Some(port) if !server.starts_with("todana serve") => {
                    format!("(exec 3<>/dev/tcp/127.0.0.1/{port})")
                }
                _ => format!("grep -qsE '^try:|listening|position' .output-{number}"),
            };
            script.push_str(&format!(
                "{server} > .output-{number} 2>&1 &\n\
                 until {is_up} 2>/dev/null; do kill -0 $! || break; sleep 0.05; done\n\
                 cat .output-{number}; kill -0 $!\n"
            ));
        } else if let Some(victims) =
            command.text.strip_prefix("kill ").filter(|words| !words.starts_with('-'))
        {
            script.push_str(&format!(
                "victims=({victims})\nkill \"${{victims[@]}}\"\n\
                 for victim in \"${{victims[@]}}\"; do while kill -0 \"$victim\" 2>/dev/null; do sleep 0.05; done; done\n"
            ));
        } else {
            script.push_str(&command.text);
            script.push('\n');
        }
    }
    script.push_str(&format!("printf '{MARK}'\n"));
    script
}

/// Returns the numbers after `-p` and `-port`.
fn ports_in(command: &str) -> Vec<&str> {
    let words: Vec<&str> = command.split_whitespace().collect();
    words.windows(2).filter(|pair| ["-p", "-port"].contains(&pair[0])).map(|pair| pair[1]).collect()
}

/// Returns free TCP ports, as many as pages name, from which 10000 above is free, too.
fn free_ports() -> Vec<u16> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    // Kyoto Tycoon's clients take no port above 32767.
    let candidates = std::iter::repeat_with(|| fastrand::u16(12_000..22_000));
    let mut ports = Vec::new();
    // A port that contains a named one would be replaced itself.
    let is_named = |port: &u16| {
        let texts = [port.to_string(), (port + 10_000).to_string()];
        let above = |named: &str| (named.parse::<u32>().unwrap_or_default() + 10_000).to_string();
        PORTS.iter().any(|named| texts.iter().any(|text| text.contains(named) || *text == above(named)))
    };
    let is_usable = |port: &u16| !is_named(port) && is_free(*port) && is_free(*port + 10_000);
    for port in candidates.filter(is_usable) {
        if !ports.contains(&port) {
            ports.push(port);
        }
        if ports.len() == PORTS.len() {
            break;
        }
    }
    ports
}

/// Returns the page with free ports, and with absolute paths below `folder`.
fn with_local_ports_and_paths(text: &str, folder: &Path) -> String {
    let mut text = text.to_string();
    for (named, free) in PORTS.iter().zip(free_ports()) {
        let above: u32 = named.parse::<u32>().unwrap_or_default() + 10_000;
        text =
            text.replace(&above.to_string(), &(free + 10_000).to_string()).replace(named, &free.to_string());
    }
    for root in ROOTS {
        for before in [" ", "'", "=", "\"", ">"] {
            let own = format!("{before}{}{root}", folder.display());
            text = text.replace(&format!("{before}{root}"), &own);
        }
    }
    text
}

fn shell(page: &Path, text: &str) -> StepOutcome {
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => return StepOutcome::Failed(error.to_string()),
    };
    // Some commands drop root's privileges to another user, who also writes files.
    let everyone = || std::os::unix::fs::PermissionsExt::from_mode(0o777);
    let _ = std::fs::set_permissions(folder.path(), everyone());
    for root in ROOTS {
        let path = folder.path().join(&root[1..]);
        let _ = std::fs::create_dir_all(&path).and_then(|()| std::fs::set_permissions(&path, everyone()));
    }
    // The executable of the other steps is used, because a release build takes minutes more.
    let root = std::path::absolute(".").unwrap_or_default();
    let build =
        format!("cargo {} --manifest-path '{}'", SHARED_BUILD.join(" "), root.join("Cargo.toml").display());
    if let Err(why) = commands(page, text).and_then(|commands| expect_named_ports(&commands)) {
        return StepOutcome::Failed(why);
    }
    let text = with_local_ports_and_paths(text, folder.path()).replace("cargo build --release", &build);
    let commands = match commands(page, &text) {
        Ok(commands) => commands,
        Err(why) => return StepOutcome::Failed(why),
    };
    let script = format!("exec 2>&1\n{}", script(&commands));
    let output = with_time_limit("bash", &["-c", &script])
        .folder(folder.path())
        .path_first(&built(""))
        .env(
            "CARGO_TARGET_DIR",
            &std::path::absolute(crate::step::target_directory()).unwrap_or_default().display().to_string(),
        )
        .output();
    match output {
        Ok(output) => conclude(&commands, &String::from_utf8_lossy(&output.stdout)),
        Err(error) => StepOutcome::Failed(format!("bash: {error}")),
    }
}

/// Compares what the commands printed with what the page shows.
fn conclude(commands: &[PageCommand], printed: &str) -> StepOutcome {
    let outputs: Vec<&str> = printed.split(MARK).skip(1).collect();
    for (number, command) in commands.iter().enumerate() {
        println!("{}: {}", command.place, command.text);
        let output =
            outputs.get(number).and_then(|output| output.split_once('\n')).map_or("", |(_, text)| text);
        print!("{output}");
        // The script prints a mark at its end.
        if outputs.len() <= number + 1 {
            return StepOutcome::Failed(format!("{}: the command failed", command.place));
        }
        let lines: Vec<&str> = output.lines().collect();
        if command.expected.as_ref().is_some_and(|expected| !matches(expected, &lines)) {
            return StepOutcome::Failed(format!("{}: the output differs from the page", command.place));
        }
    }
    StepOutcome::Passed
}

/// Runs the blocks of a language that name the server's address, each against a server of its own.
fn clients(language: &str, interpreter: &str, option: &str) -> StepOutcome {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap_or_default();
        for (line, block) in blocks(&text, language).iter().filter(|(_, block)| block.contains(ADDRESS)) {
            println!("{}", place(&page, *line));
            let server = match TestServer::start(&[]) {
                Ok(server) => server,
                Err(error) => return StepOutcome::Failed(error),
            };
            let program = block.replace(ADDRESS, &server.address);
            // `php -r` takes no opening tag.
            let program = program.trim_start_matches("<?php\n");
            let outcome = with_time_limit(interpreter, &[option, program]).run();
            if !matches!(outcome, StepOutcome::Passed) {
                return outcome;
            }
        }
    }
    StepOutcome::Passed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<PageCommand>, String> {
        commands(Path::new("p.md"), text)
    }

    fn outcome(text: &str) -> StepOutcome {
        let commands = of(text).unwrap();
        let output = program("bash", &["-c", &format!("exec 2>&1\n{}", script(&commands))]).output().unwrap();
        conclude(&commands, &String::from_utf8_lossy(&output.stdout))
    }

    #[test]
    fn blocks_are_found_by_language_and_line() {
        let text = "a\n```sh\nx\ny\n```\nb\n```python\nz\n```\n```sh not-run: needs root\nw\n```\n";
        assert_eq!(blocks(text, "sh"), [(3, "x\ny".into())]);
        assert_eq!(blocks(text, "python"), [(8, "z".into())]);
    }

    #[test]
    fn commands_span_lines_and_here_documents() {
        let text = "```sh\n# nothing\na \\\n  b  # not: run\ncat > f <<'EOF'\n# kept\nEOF\nc  # prints: 7\n```\n```console\n$ d\nout\n$ e\n```\n";
        let found: Vec<(String, String)> =
            of(text).unwrap().into_iter().map(|command| (command.place, command.text)).collect();
        let expected = [
            ("p.md:3", "a \\\n  b  # not: run"),
            ("p.md:5", "cat > f <<'EOF'\n# kept\nEOF"),
            ("p.md:8", "c"),
            ("p.md:11", "d"),
            ("p.md:13", "e"),
        ];
        assert_eq!(found, expected.map(|(place, text)| (place.to_string(), text.to_string())));
    }

    #[test]
    fn wrong_output_and_failure_are_reported() {
        assert!(matches!(outcome("```sh\necho 42  # prints: 4\n```"), StepOutcome::Passed));
        assert!(matches!(
            outcome("```console\n$ printf 'a\\nb\\nc 7 d\\n'\na\n...\nc ... d\n$ true\n```"),
            StepOutcome::Passed
        ));
        for text in
            ["```sh\necho 43  # prints: 42\n```", "```sh\nfalse\ntrue\n```", "```console\n$ echo a\nb\n```"]
        {
            assert!(matches!(outcome(text), StepOutcome::Failed(_)), "{text}");
        }
    }

    #[test]
    fn unmarked_blocks_and_foreign_ports_are_refused() {
        for text in [
            "```\nx\n```",
            "a\n\n    todana serve\n",
            "```sh\ntodana get a -S h:11211\n```",
            "```console\na\n```",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ports_that_are_not_replaced_are_refused() {
        let outcome = |command: &str| expect_named_ports(&of(&format!("```sh\n{command}\n```\n")).unwrap());
        for command in [
            "todana serve -p 11314 &",
            "todana serve -p 11311 --admin-port 21314 &",
            "ktserver -port 1980 &",
            "todana get a -S 127.0.0.1:11315",
            "(exec 3<>/dev/tcp/127.0.0.1/11316)",
            "cat > c.toml <<EOF\nport = 11317\nEOF",
        ] {
            let why = outcome(command).unwrap_err();
            assert!(why.starts_with("p.md:2: port ") && why.contains("PORTS"), "{why}");
        }
        for command in [
            "todana serve -p 11311 --admin-port 21311 -m 1024 --requests 20000 &",
            "todana serve --admin-port 0 -p -1 &",
            "todana get a -S localhost:1978",
            "todana proxy --where cache1:11210",
        ] {
            outcome(command).unwrap();
        }
    }

    #[test]
    fn every_code_block_is_run_or_marked() {
        std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
        for page in pages() {
            let text = std::fs::read_to_string(&page).unwrap();
            expect_named_ports(&commands(&page, &text).unwrap()).unwrap();
        }
    }
}
