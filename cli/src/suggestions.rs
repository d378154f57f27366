//! What is proposed in place of a word that is not known: a command, an option, a variable.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};

/// Commands that other tools have, and what does the same here.
const ELSEWHERE: [(&str, &str); 15] = [
    ("add", "set --add"),
    ("bgsave", "checkpoint"),
    ("dbsize", "count"),
    ("expire", "touch"),
    ("flushall", "flush"),
    ("flush_all", "flush"),
    ("monitor", "log --follow"),
    ("put", "set"),
    ("remove", "delete"),
    ("rm", "delete"),
    ("save", "checkpoint"),
    ("scan", "list"),
    ("server", "serve"),
    ("start", "serve"),
    ("top", "stats"),
];
const SHELLS: [&str; 5] = ["cli", "console", "interactive", "repl", "shell"];

/// Options that memcached has and `serve` does not.
const OF_MEMCACHED: [&str; 22] = [
    "-C",
    "-L",
    "-N",
    "-Z",
    "-d",
    "-e",
    "-f",
    "-i",
    "-k",
    "-n",
    "-r",
    "-u",
    "--daemon",
    "--disable-cas",
    "--enable-coredumps",
    "--enable-largepages",
    "--enable-ssl",
    "--lock-memory",
    "--memory-file",
    "--slab-growth-factor",
    "--slab-min-size",
    "--user",
];

/// Variables that the commands read and `serve` does not.
const OF_COMMANDS: [&str; 3] = ["TODANA_SERVER", "TODANA_USER", "TODANA_PASSWORD"];

const MORE: &str = "For more information, try '--help'.\n";

/// Returns the error in words that a user of the program knows.
pub(crate) fn clearer(error: clap::Error, command: &Command) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = text(ContextKind::InvalidSubcommand);
            // Not one of a command's own commands.
            if std::env::args().nth(1).as_ref() != Some(&typed) {
                return error;
            }
            let tip = instead_of(&typed, command).map_or_else(String::new, |tip| format!("  tip: {tip}\n\n"));
            let message = format!("unrecognized subcommand '{typed}'\n\n{tip}{MORE}");
            clap::Error::raw(ErrorKind::InvalidSubcommand, message)
        }
        ErrorKind::ValueValidation => {
            let Some(wrong) = error.source().and_then(|source| source.downcast_ref::<ParseIntError>()) else {
                return error;
            };
            let problem = match wrong.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "out of range",
                _ => "not a whole number",
            };
            let (value, option) = (text(ContextKind::InvalidValue), text(ContextKind::InvalidArg));
            let message = format!("invalid value '{value}' for '{option}': {problem}\n\n{MORE}");
            clap::Error::raw(ErrorKind::ValueValidation, message)
        }
        _ => error,
    }
}

fn instead_of(typed: &str, command: &Command) -> Option<String> {
    if SHELLS.contains(&typed) {
        return Some("there is no shell: each request is a command of its own, as `todana get KEY`".into());
    }
    if let Some((_, instead)) = ELSEWHERE.iter().find(|(elsewhere, _)| *elsewhere == typed) {
        return Some(format!("try `todana {instead}`"));
    }
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = shown.map(Command::get_name).collect();
    let begins = names.iter().find(|name| typed.len() > 2 && name.starts_with(typed)).copied();
    let nearest = begins.or_else(|| nearest(typed, &names));
    nearest.map(|name| format!("try `todana {name}`"))
}

/// Adds where an option of memcached's is known to an error that says that `serve` does not know it.
pub(crate) fn with_memcached(mut error: clap::Error, words: &[String]) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
        && OF_MEMCACHED.contains(&option.as_str())
    {
        let tip = format!("{option} is an option of memcached's: todana as memcached {}", words.join(" "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Warns of variables that look as if they were for this program, and are not read.
pub(crate) fn warn_of_unknown_variables(serve: &Command) {
    let own = serve.get_arguments().filter_map(Arg::get_env).filter_map(|name| name.to_str());
    let known: Vec<&str> = own.chain(OF_COMMANDS).collect();
    let mut unknown: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("TODANA_") && !known.contains(&name.as_str()))
        .collect();
    unknown.sort();
    for name in unknown {
        let hint = nearest(&name, &known).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        eprintln!("todana: {name}: there is no such variable{hint}");
    }
}

/// Returns the word that is at most two slips away, if there is one.
fn nearest<'w>(typed: &str, words: &[&'w str]) -> Option<&'w str> {
    let limit = if typed.len() < 6 { 1 } else { 2 };
    let distances = words.iter().map(|word| (distance(typed, word), *word));
    distances.filter(|(distance, _)| *distance <= limit).min().map(|(_, word)| word)
}

/// Returns how many letters have to be changed, added, left out, or exchanged with the next.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_found() {
        for (a, b, expected) in [("kitten", "sitting", 3), ("", "abc", 3), ("gte", "get", 1), ("a", "a", 0)] {
            assert_eq!(distance(a, b), expected);
        }
        assert_eq!(nearest("gte", &["set", "get", "delete"]), Some("get"));
        assert_eq!(nearest("TODANA_PROT", &["TODANA_PORT", "TODANA_SYNC"]), Some("TODANA_PORT"));
        assert_eq!(nearest("scan", &["man", "count"]), None);
    }
}
