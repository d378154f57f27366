//! Completes commands, options and keys at the prompt.

use super::commands::description;
use super::input::{ShellInput, quoted};
use crate::database;
use crate::dump::read_listed;
use crate::open_target::OpenTarget;
use crate::server_options::ServerTarget;
use clap::builder::Command;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use todana_client::Error;

/// The time that the search for keys may take.
const SEARCH_TIME: Duration = Duration::from_millis(200);
/// The most keys that are offered.
const KEYS_MAX: usize = 100;
/// The commands of which every word is a key, and those of which the first is.
const OF_KEYS: [&str; 3] = ["get", "delete", "del"];
const OF_ONE_KEY: [&str; 4] = ["set", "incr", "decr", "touch"];
/// The commands before another command.
const PREFIXES: [&str; 4] = ["todana", "time", "watch", "help"];

/// Helps the editor of the prompt.
pub(super) struct ShellHelper {
    target: Rc<RefCell<OpenTarget>>,
    commands: Command,
}

impl ShellHelper {
    /// Returns a helper that searches for keys at this place.
    pub(super) fn new(target: Rc<RefCell<OpenTarget>>) -> ShellHelper {
        ShellHelper { target, commands: description() }
    }

    /// Returns what can stand at the end of the words.
    fn candidates(&self, before: &[&str], word: &[u8]) -> Vec<Vec<u8>> {
        let before = match before {
            [first, rest @ ..] if PREFIXES.contains(first) => rest,
            before => before,
        };
        let text = String::from_utf8_lossy(word);
        let begins = |name: &String| name.starts_with(&*text);
        let owned = |names: Vec<String>| names.into_iter().filter(begins).map(String::into_bytes).collect();
        let Some(name) = before.first() else {
            let shown = self.commands.get_subcommands().filter(|command| !command.is_hide_set());
            return owned(shown.map(|command| command.get_name().to_string()).collect());
        };
        if word.starts_with(b"-") {
            let options = self.commands.find_subcommand(name).map(|command| {
                let shown = command.get_arguments().filter(|option| !option.is_hide_set());
                shown.filter_map(|option| Some(format!("--{}", option.get_long()?))).collect()
            });
            return owned(options.unwrap_or_default());
        }
        match OF_KEYS.contains(name) || (OF_ONE_KEY.contains(name) && before.len() == 1) {
            true => keys(&mut self.target.borrow_mut(), word),
            false => Vec::new(),
        }
    }
}

impl Completer for ShellHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let Ok(input) = ShellInput::parse(&line.as_bytes()[..at]) else { return Ok((at, Vec::new())) };
        let mut words = input.commands.into_iter().next_back().unwrap_or_default();
        let word = if input.ends_in_word { words.pop() } else { None };
        let (start, word) = word.map_or((at, Vec::new()), |word| (word.start, word.bytes));
        let before: Vec<String> =
            words.iter().map(|word| String::from_utf8_lossy(&word.bytes).to_lowercase()).collect();
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let mut found = self.candidates(&before, &word);
        found.sort();
        let is_only = found.len() == 1;
        let pair = |bytes: Vec<u8>| {
            let display = quoted(&bytes);
            let replacement = if is_only { format!("{display} ") } else { display.clone() };
            Pair { display, replacement }
        };
        Ok((start, found.into_iter().map(pair).collect()))
    }
}

impl Validator for ShellHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match ShellInput::parse(context.input().as_bytes()) {
            Ok(input) if !input.is_complete => ValidationResult::Incomplete,
            // A wrong escape is reported when the command runs.
            _ => ValidationResult::Valid(None),
        })
    }
}

impl Hinter for ShellHelper {
    type Hint = String;
}

impl Highlighter for ShellHelper {}

impl Helper for ShellHelper {}

/// Returns keys with this prefix, as many as can be found in a short time.
fn keys(target: &mut OpenTarget, prefix: &[u8]) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + SEARCH_TIME;
    let mut found = Vec::new();
    let mut see = |key: &[u8]| {
        if key.starts_with(prefix) {
            found.push(key.to_vec());
        }
        found.len() < KEYS_MAX && Instant::now() < deadline
    };
    // If keys cannot be read, the completion offers none.
    match target {
        OpenTarget::Servers(servers) => {
            servers.targets().iter().for_each(|server| keys_of_server(server, &mut see));
        }
        OpenTarget::Database(database) => {
            let _ = database.open(false).and_then(|db| database::keys(db, prefix, &mut see));
        }
    }
    found
}

/// Passes the keys of a server to `see` until it returns false.
fn keys_of_server(server: &ServerTarget, see: &mut dyn FnMut(&[u8]) -> bool) {
    let Ok(mut connection) = server.connect() else { return };
    // Each listing has its own connection, because an error within it makes that unusable.
    let _ = connection.metadump(|line| {
        let (key, _) = read_listed(line).ok_or(Error::MalformedReply)?;
        if see(&key) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::Interrupted).into()) }
    });
}
