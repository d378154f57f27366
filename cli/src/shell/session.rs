//! Runs the commands of a shell on a server or a database that stays open.

use super::commands::{HELP, ParsedCommand, ShellCommand, help, parse};
use crate::command_output::CommandOutput;
use crate::interruption_flag::InterruptionFlag;
use crate::open_target::{CommandPlace, OpenTarget};
use crate::record_commands::{self, RecordCommand};
use crate::server_options::ServerOptions;
use crate::{CommandFailure, checkpoint, database, replicas};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Moves the cursor of a terminal to its beginning, and clears it.
const CLEAR: &str = "\x1b[H\x1b[J";
/// The time after which a waiting `watch` notices Ctrl-C.
const PAUSE: Duration = Duration::from_millis(50);

/// The place of a shell's commands.
pub(super) struct ShellSession {
    /// The options that name the place.
    options: ServerOptions,
    /// The place, shared with the completion of keys.
    target: Rc<RefCell<OpenTarget>>,
}

impl ShellSession {
    /// Returns a session at the place of the options.
    pub(super) fn new(options: ServerOptions) -> Result<ShellSession, CommandFailure> {
        let target = OpenTarget::of(&options, options.place(None)?)?;
        Ok(ShellSession { options, target: Rc::new(RefCell::new(target)) })
    }

    /// Returns the place.
    pub(super) fn target(&self) -> Rc<RefCell<OpenTarget>> {
        Rc::clone(&self.target)
    }

    /// Returns true if the place is a server or a ring.
    pub(super) fn has_server(&self) -> bool {
        matches!(*self.target.borrow(), OpenTarget::Servers(_))
    }

    /// Runs a command. Breaks if the shell must end.
    pub(super) fn run(
        &mut self,
        words: Vec<OsString>,
        out: &mut CommandOutput<'_>,
    ) -> Result<ControlFlow<()>, CommandFailure> {
        let command = match parse(words)? {
            ParsedCommand::Command(command) => command,
            ParsedCommand::Help(text) => {
                out.write_all(text.as_bytes())?;
                return Ok(ControlFlow::Continue(()));
            }
        };
        match *command {
            ShellCommand::Exit => return Ok(ControlFlow::Break(())),
            ShellCommand::Data(command) => {
                expect_no_standard_input(&command)?;
                let target = &mut *self.target.borrow_mut();
                if let OpenTarget::Servers(servers) = target {
                    servers.drop_ended();
                }
                record_commands::run_at(&mut CommandPlace::in_shell(target, &self.options), &command, out)?;
            }
            ShellCommand::Database(command) => {
                let target = &mut *self.target.borrow_mut();
                database::run_whole(*command, &mut CommandPlace::in_shell(target, &self.options), out)?;
            }
            ShellCommand::Checkpoint(arguments) => checkpoint::run(&arguments.within(&self.options))?,
            ShellCommand::Replicas(arguments) => replicas::run(&arguments.within(&self.options))?,
            ShellCommand::Connect { place, server } => {
                let place = server.place(Some(&place))?;
                *self = ShellSession::new(server.naming(place))?;
            }
            ShellCommand::Help { command: Some(command) } => out.write_all(help(&command)?.as_bytes())?,
            ShellCommand::Help { command: None } => out.write_all(HELP.as_bytes())?,
            ShellCommand::Time { command } => {
                let start = Instant::now();
                let outcome = self.run(command, out);
                let line = format!("time: {:.3} ms", start.elapsed().as_secs_f64() * 1e3);
                // The results of a batch do not depend on the time.
                if out.is_terminal {
                    writeln!(out, "{line}")?
                } else {
                    eprintln!("{line}")
                }
                return outcome;
            }
            ShellCommand::Watch { interval, count, command } => {
                let interval = Duration::from_secs(interval.max(0).unsigned_abs());
                self.watch(&command, interval, count.unwrap_or(u64::MAX), out)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Repeats a command. If a person reads its output, that replaces the output of the run before,
    /// and a failure does not end the repetition.
    fn watch(
        &mut self,
        command: &[OsString],
        interval: Duration,
        count: u64,
        out: &CommandOutput<'_>,
    ) -> Result<(), CommandFailure> {
        parse(command.to_vec())?;
        let interruption = InterruptionFlag::watch()?;
        for run in 0..count {
            let start = Instant::now();
            while run > 0 && start.elapsed() < interval {
                if interruption.check().is_err() {
                    return Ok(());
                }
                std::thread::sleep(PAUSE.min(interval));
            }
            let mut printed = Vec::new();
            let mut view = match out.is_terminal {
                true => CommandOutput::terminal(&mut printed),
                false => CommandOutput::plain(&mut printed),
            };
            view.one_line_values = out.one_line_values;
            let outcome = self.run(command.to_vec(), &mut view);
            view.flush()?;
            drop(view);
            let clear = if out.is_terminal { CLEAR.as_bytes() } else { b"" };
            io::stdout().write_all(&[clear, &printed].concat())?;
            io::stdout().flush()?;
            match outcome {
                Err(failure) if out.is_terminal && !failure.is_closed_pipe() => failure.print(),
                Err(failure) => return Err(failure),
                Ok(ControlFlow::Break(())) => break,
                Ok(ControlFlow::Continue(())) => {}
            }
            if interruption.check().is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Fails if the command reads standard input, which has the commands of the shell.
fn expect_no_standard_input(command: &RecordCommand) -> Result<(), CommandFailure> {
    let instead = match command {
        RecordCommand::Set { value, .. } if value == "-" => "write the value, in quotes if needed",
        RecordCommand::Load { file, .. } if file == Path::new("-") => "name a file",
        _ => return Ok(()),
    };
    Err(CommandFailure::usage(format!("-: standard input has the commands of the shell; {instead}")))
}
