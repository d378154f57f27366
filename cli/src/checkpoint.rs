//! `todana checkpoint`: requests a server to write a checkpoint now.

use crate::CommandFailure;
use crate::amount::amount;
use crate::command_failure::no_stored_data;
use crate::command_target::CommandTarget;
use crate::interruption_flag::InterruptionFlag;
use crate::progress::progress;
use crate::server_options::ServerOptions;
use clap::Args;
use std::io::Write;
use std::time::Duration;
use todana_client::CompletedCheckpoint;

pub(crate) const AFTER_HELP: &str = "\
A server with --data-dir writes checkpoints by itself as its update log grows.
A fresh checkpoint makes the next start faster. Ctrl-C cancels the command.

Example:
  todana checkpoint 127.0.0.1:11311";

/// The arguments of `todana checkpoint`.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArguments {
    /// The server: host:port, todana://host:port, todanas://host:port (TLS) or unix:/path; or -S
    /// [default: TODANA_SERVER, or 127.0.0.1:11211]
    #[arg(value_name = "SERVER")]
    place: Option<CommandTarget>,
    #[command(flatten)]
    server: ServerOptions,
}

impl CheckpointArguments {
    /// Returns the arguments of the command in a shell.
    pub(crate) fn within(self, shell: &ServerOptions) -> Self {
        match self.place {
            Some(_) => self,
            None => Self { server: self.server.within(shell), ..self },
        }
    }
}

pub(crate) fn run(arguments: &CheckpointArguments) -> Result<(), CommandFailure> {
    let interruption = InterruptionFlag::watch()?;
    let CheckpointArguments { place, server } = arguments;
    let destination = server.place(place.as_ref())?.server()?;
    let mut connection = server.connect(&destination)?;
    let database = server.database_number(&mut connection)?;
    connection.give_up_when(interruption.flag());
    let bar = progress(None, "{spinner} the server writes a checkpoint {elapsed}");
    bar.enable_steady_tick(Duration::from_millis(100));
    let made = connection.checkpoint(database);
    bar.finish_and_clear();
    interruption.check()?;
    let CompletedCheckpoint { position, records, len, took_ms } = made.map_err(no_stored_data)?;
    let took_s = took_ms as f64 / 1000.0;
    writeln!(
        std::io::stdout(),
        "a checkpoint of {}, {len} bytes, in {took_s:.1} s; the log is needed from position {position}",
        amount(records, "record")
    )?;
    Ok(())
}
