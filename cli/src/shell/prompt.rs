//! The prompt of a shell at a terminal.

use super::completion::ShellHelper;
use super::history::{HistoryFile, LINES_MAX};
use super::input::ShellInput;
use super::pager::PagedOutput;
use super::session::ShellSession;
use crate::CommandFailure;
use crate::command_output::CommandOutput;
use crate::interruption_flag::InterruptionFlag;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use signal_hook::consts::SIGTERM;
use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The size that is assumed for a terminal that does not report it.
const SCREEN: (u16, u16) = (80, 24);

/// Reads and runs commands until the user ends the shell.
pub(super) fn run(mut session: ShellSession) -> Result<(), CommandFailure> {
    let interruption = InterruptionFlag::watch()?;
    // While a command runs, SIGTERM sets the flag; at the prompt, it ends the shell.
    let at_prompt = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_default(SIGTERM, Arc::clone(&at_prompt))?;
    let mut editor = editor()?;
    let history = HistoryFile::load(&mut editor);
    println!("todana {}; `help` lists the commands, Ctrl-D ends the shell", env!("CARGO_PKG_VERSION"));
    greet(&mut session);
    loop {
        editor.set_helper(Some(ShellHelper::new(session.target())));
        let prompt = format!("{}> ", session.target().borrow());
        interruption.clear();
        at_prompt.store(true, Ordering::Relaxed);
        let line = editor.readline(&prompt);
        at_prompt.store(false, Ordering::Relaxed);
        let line = match line {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(CommandFailure::trouble(format!("cannot read a line: {error}"))),
        };
        history.add(&mut editor, &line);
        let (columns, rows) = editor.dimensions().unwrap_or(SCREEN);
        let screen = (columns.into(), rows.into());
        let input = match ShellInput::parse(line.as_bytes()) {
            Ok(input) => input,
            Err(what) => {
                CommandFailure::usage(what).print();
                continue;
            }
        };
        for command in input.into_commands() {
            let connects = command[0].eq_ignore_ascii_case("connect");
            match run_paged(&mut session, command, screen, &interruption) {
                Ok(ControlFlow::Break(())) => return Ok(()),
                Ok(ControlFlow::Continue(())) if connects => greet(&mut session),
                Ok(ControlFlow::Continue(())) => {}
                Err(failure) => {
                    failure.print();
                    break;
                }
            }
        }
    }
}

fn editor() -> Result<Editor<ShellHelper, FileHistory>, CommandFailure> {
    let failure = |error: ReadlineError| CommandFailure::trouble(format!("cannot use the terminal: {error}"));
    let config = Config::builder().history_ignore_space(true).completion_type(CompletionType::List);
    let config = config.max_history_size(LINES_MAX).map_err(failure)?;
    Editor::with_config(config.build()).map_err(failure)
}

/// Runs a command whose output is shown in a pager if it does not fit the screen.
fn run_paged(
    session: &mut ShellSession,
    command: Vec<OsString>,
    screen: (usize, usize),
    interruption: &InterruptionFlag,
) -> Result<ControlFlow<()>, CommandFailure> {
    let mut paged = PagedOutput::new(screen, interruption.clone());
    let mut out = CommandOutput::terminal(&mut paged);
    let outcome = session.run(command, &mut out);
    let flushed = out.flush();
    drop(out);
    paged.finish()?;
    match outcome {
        Err(_) if interruption.check().is_err() => Err(CommandFailure::interrupted()),
        Ok(flow) if interruption.check().is_ok() => Ok(flushed.map(|()| flow)?),
        outcome => outcome,
    }
}

/// Prints the version of the server, or the reason why it cannot be reached.
fn greet(session: &mut ShellSession) {
    if !session.has_server() {
        return;
    }
    if let Err(failure) = session.run(vec!["ping".into()], &mut CommandOutput::process()) {
        failure.print();
        eprintln!("todana: `connect HOST:PORT` uses another server, `connect ./x.hash` a database");
    }
}
