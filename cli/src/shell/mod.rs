//! `todana shell`: runs commands that are typed at a prompt, or read from standard input.
//!
//! ```text
//! input      the syntax of commands
//! commands   their description, and help
//! session    runs them on a server or a database that stays open
//! prompt     the prompt of a terminal: history, completion, pages
//! batch      the lines of standard input
//! ```
//!
//! Not here: what the commands do (see `record_commands` and `database`).

mod batch;
mod commands;
mod completion;
mod history;
mod input;
mod pager;
mod prompt;
mod session;

use crate::CommandFailure;
use crate::command_target::CommandTarget;
use crate::server_options::ServerOptions;
use clap::Args;
use session::ShellSession;
use std::io::{self, IsTerminal};

pub(crate) const AFTER_HELP: &str = "\
At a terminal, `help` lists the commands. From a pipe, each line is a command,
and the first that fails ends the shell with its exit code. There, `get` prints
each value on one line, escaped as by `list --values`.

Examples:
  todana shell 127.0.0.1:11311
  todana shell ./carts.hash
  printf 'set a 1\\nget a\\n' | todana shell";

/// The arguments of `todana shell`.
#[derive(Debug, Default, Args)]
pub(crate) struct ShellArguments {
    /// The server or the database, as for -S [default: TODANA_SERVER, or 127.0.0.1:11211]
    #[arg(value_name = "PLACE")]
    place: Option<CommandTarget>,
    /// Without a terminal: go on after a command that fails; the exit code is that of the first
    #[arg(short, long)]
    keep_going: bool,
    #[command(flatten)]
    server: ServerOptions,
}

pub(crate) fn run(arguments: &ShellArguments) -> Result<(), CommandFailure> {
    let ShellArguments { place, keep_going, server } = arguments;
    let place = server.place(place.as_ref())?;
    let session = ShellSession::new(server.naming(place))?;
    match io::stdin().is_terminal() && io::stdout().is_terminal() {
        true => prompt::run(session),
        false => batch::run(session, *keep_going),
    }
}
