//! A shell without a terminal: runs the lines of standard input.

use super::input::ShellInput;
use super::session::ShellSession;
use crate::CommandFailure;
use crate::command_output::CommandOutput;
use std::io::{self, BufRead, Write};

/// Runs all commands. The first that fails ends the shell, unless `keeps_going`.
pub(super) fn run(mut session: ShellSession, keeps_going: bool) -> Result<(), CommandFailure> {
    let mut stdin = io::stdin().lock();
    let mut out = CommandOutput::process();
    out.one_line_values = true;
    let mut lines = CommandLines::default();
    let mut outcome = Ok(());
    while let Some(input) = lines.next(&mut stdin)? {
        let ran = input.and_then(|input| {
            input.into_commands().try_fold(true, |goes_on, command| {
                Ok(goes_on && session.run(command, &mut out)?.is_continue())
            })
        });
        out.flush()?;
        match ran {
            Ok(true) => {}
            Ok(false) => break,
            Err(failure) if failure.is_closed_pipe() => return Err(failure),
            Err(failure) => {
                let failure = failure.at(&format!("line {}", lines.first));
                if !keeps_going {
                    return Err(failure);
                }
                failure.print();
                outcome = outcome.and(Err(failure.silent()));
            }
        }
    }
    outcome
}

/// Collects the lines of a command.
#[derive(Default)]
struct CommandLines {
    /// The number of lines that were read.
    count: u64,
    /// The number of the first line of the command.
    first: u64,
}

impl CommandLines {
    /// Returns the next command, the reason why it cannot be parsed, or `None` at the end.
    fn next(&mut self, from: &mut impl BufRead) -> io::Result<Option<Result<ShellInput, CommandFailure>>> {
        let mut text = Vec::new();
        self.first = self.count + 1;
        loop {
            let is_over = from.read_until(b'\n', &mut text)? == 0;
            if is_over && text.is_empty() {
                return Ok(None);
            }
            self.count += u64::from(!is_over);
            match ShellInput::parse(&text) {
                Ok(input) if input.is_complete => return Ok(Some(Ok(input))),
                Ok(_) if is_over => {
                    let what = "the command is not complete; a quote, a bracket or a line is open";
                    return Ok(Some(Err(CommandFailure::usage(what))));
                }
                Ok(_) => {}
                Err(what) => return Ok(Some(Err(CommandFailure::usage(what)))),
            }
        }
    }
}
