//! `todana checkpoint`: a checkpoint, now.

use crate::Failure;
use crate::amount::amount;
use crate::data::progress;
use crate::interruption::Interruption;
use crate::source::{ServerOptions, refusal};
use clap::Args;
use std::io::Write;
use std::time::Duration;
use todana_client::{Destination, Made};

pub(crate) const AFTER_HELP: &str = "\
A server with --data-dir makes checkpoints by itself as its update log grows. One
that is made now makes the next start quick. Ctrl-C calls it off.

Example:
  todana checkpoint 127.0.0.1:11311";

/// As that of the data commands.
const DEFAULT_SERVER: &str = "127.0.0.1:11211";

/// What `checkpoint` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The server: host:port, todana://host:port, todanas://host:port (TLS) or unix:/path; or -S [default: that of
    /// TODANA_SERVER, or 127.0.0.1:11211]
    #[arg(value_name = "SERVER")]
    place: Option<Destination>,
    #[command(flatten)]
    server: ServerOptions,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let interruption = Interruption::watch()?;
    let Arguments { place, server } = arguments;
    let named = server.named(place.is_some())?;
    let destination = match named.or_else(|| place.clone()) {
        Some(destination) => destination,
        None => DEFAULT_SERVER.parse().map_err(|error| Failure::usage(format!("{error}")))?,
    };
    let mut connection = server.connect(&destination)?;
    let database = server.database_number(&mut connection)?;
    connection.give_up_when(interruption.flag());
    let bar = progress(None, "{spinner} the server makes a checkpoint {elapsed}");
    bar.enable_steady_tick(Duration::from_millis(100));
    let made = connection.checkpoint(database);
    bar.finish_and_clear();
    interruption.check()?;
    let Made { position, records, len, took_ms } = made.map_err(refusal)?;
    let took_s = took_ms as f64 / 1000.0;
    writeln!(
        std::io::stdout(),
        "a checkpoint of {}, {len} bytes, in {took_s:.1} s; the log is needed from {position} on",
        amount(records, "record")
    )?;
    Ok(())
}
