//! Suggestions for unknown words: commands, options, variables and names of databases.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};

/// Commands of other tools, each with the command that has the same effect here.
const FOREIGN_COMMANDS: [(&str, &str); 18] = [
    ("add", "set --add"),
    ("bgsave", "checkpoint"),
    ("cli", "shell"),
    ("console", "shell"),
    ("dbsize", "count"),
    ("expire", "touch"),
    ("flushall", "flush"),
    ("flush_all", "flush"),
    ("interactive", "shell"),
    ("monitor", "log --follow"),
    ("put", "set"),
    ("remove", "delete"),
    ("repl", "shell"),
    ("rm", "delete"),
    ("save", "checkpoint"),
    ("scan", "list"),
    ("server", "serve"),
    ("start", "serve"),
];

/// Options of memcached that `serve` does not have.
const MEMCACHED_OPTIONS: [&str; 22] = [
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

/// Variables that the client commands read, but not `serve`.
const CLIENT_VARIABLES: [&str; 3] = ["TODANA_SERVER", "TODANA_USER", "TODANA_PASSWORD"];

const MORE: &str = "For more information, try '--help'.\n";

/// Returns the error with a suggestion, and without the wording of Rust's parsers.
pub(crate) fn clearer(error: clap::Error, command: &Command) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = text(ContextKind::InvalidSubcommand);
            // The suggestion applies only to the first word, not to the subcommand of another
            // command.
            if std::env::args().nth(1).as_ref() != Some(&typed) {
                return error;
            }
            let tip = suggestion(&typed, command, "todana ")
                .map_or_else(String::new, |tip| format!("  tip: {tip}\n\n"));
            let message = format!("unrecognized subcommand '{typed}'\n\n{tip}{MORE}");
            clap::Error::raw(ErrorKind::InvalidSubcommand, message)
        }
        ErrorKind::ValueValidation => {
            let Some(wrong) = error.source().and_then(|source| source.downcast_ref::<ParseIntError>()) else {
                return error;
            };
            let problem = match wrong.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "out of range",
                _ => "must be a whole number",
            };
            let (value, option) = (text(ContextKind::InvalidValue), text(ContextKind::InvalidArg));
            let message = format!("invalid value '{value}' for '{option}': {problem}\n\n{MORE}");
            clap::Error::raw(ErrorKind::ValueValidation, message)
        }
        _ => error,
    }
}

/// Returns the command that the user may have meant. `program` is the text before its name.
pub(crate) fn suggestion(typed: &str, command: &Command, program: &str) -> Option<String> {
    if let Some((_, instead)) = FOREIGN_COMMANDS.iter().find(|(foreign, _)| *foreign == typed) {
        return Some(format!("use `{program}{instead}`"));
    }
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = shown.map(Command::get_name).collect();
    let begins = names.iter().find(|name| typed.len() > 2 && name.starts_with(typed)).copied();
    let nearest = begins.or_else(|| nearest(typed, &names));
    nearest.map(|name| format!("did you mean `{program}{name}`?"))
}

/// If the unknown option is one of memcached's, adds a suggestion to its error.
pub(crate) fn with_memcached(mut error: clap::Error, words: &[String]) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
        && MEMCACHED_OPTIONS.contains(&option.as_str())
    {
        let tip =
            format!("{option} is an option of memcached; use `todana as memcached {}`", words.join(" "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Prints a warning for each variable `TODANA_...` that no option reads.
pub(crate) fn warn_of_unknown_variables(serve: &Command) {
    let own = serve.get_arguments().filter_map(Arg::get_env).filter_map(|name| name.to_str());
    let known: Vec<&str> = own.chain(CLIENT_VARIABLES).collect();
    let mut unknown: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("TODANA_") && !known.contains(&name.as_str()))
        .collect();
    unknown.sort();
    for name in unknown {
        eprintln!("todana: {name}: unknown variable{}", did_you_mean(&name, &known));
    }
}

/// Returns `; did you mean WORD?` for the most similar word, or an empty text if no word is
/// similar.
pub(crate) fn did_you_mean(typed: &str, words: &[&str]) -> String {
    nearest(typed, words).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// Returns a suggestion for the misspelt name of a database, or an empty text if none is similar.
pub(crate) fn did_you_mean_database(name: &str) -> String {
    const KINDS: [&str; 2] = ["hash", "tree"];
    let name = name.split('#').next().unwrap_or_default();
    let name = name.rsplit_once('=').map_or(name, |(_, name)| name);
    let near = |typed: &str| KINDS.into_iter().find(|kind| distance(typed, kind) <= 2 && !typed.is_empty());
    let meant = if let Some(kind) = name.strip_prefix("disk:") {
        // The word may be a kind as statistics name it.
        near(kind).map(|kind| format!("PATH.{kind}"))
    } else if let Some((memory, kind)) = name.split_once(':').filter(|(memory, _)| !memory.contains('/')) {
        near(kind).filter(|_| distance(memory, "mem") <= 1).map(|kind| format!("mem:{kind}"))
    } else {
        let ending = name.rsplit_once('.');
        ending.and_then(|(path, ending)| near(ending).map(|kind| format!("{path}.{kind}")))
    };
    meant.filter(|meant| meant != name).map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}

/// Returns the most similar word, if its edit distance is at most 2, or 1 for a short word.
fn nearest<'w>(typed: &str, words: &[&'w str]) -> Option<&'w str> {
    let limit = if typed.len() < 6 { 1 } else { 2 };
    let distances = words.iter().map(|word| (distance(typed, word), *word));
    distances.filter(|(distance, _)| *distance <= limit).min().map(|(_, word)| word)
}

/// Returns the edit distance of two words: the number of letters to change, insert, delete, or swap
/// with the next one.
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

    #[test]
    fn misspelt_database_names_get_suggestions() {
        for (typed, meant) in [
            ("mem:hsah", "mem:hash"),
            ("users=mem:tre", "mem:tree"),
            ("men:hash", "mem:hash"),
            ("disk:hash", "PATH.hash"),
            ("./carts.hsh#bnum=1", "./carts.hash"),
            ("./users.treee", "./users.tree"),
        ] {
            assert_eq!(did_you_mean_database(typed), format!("; did you mean {meant}?"), "{typed}");
        }
        for typed in ["./x.db", "mem:", "mem:hash", "./x.hash", "localhost:11211", "./dir.d/x"] {
            assert_eq!(did_you_mean_database(typed), "", "{typed}");
        }
    }
}
