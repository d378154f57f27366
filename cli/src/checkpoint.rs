//! `todana checkpoint`: a checkpoint, now.

use crate::client_login::ClientLogin;
use crate::client_tls::ClientTls;
use crate::data::progress;
use crate::interruption::Interruption;
use crate::{Failure, source};
use clap::Args;
use std::io::Write;
use std::time::Duration;
use todana_client::{Destination, Made};

pub(crate) const AFTER_HELP: &str = "\
A server with --data-dir makes checkpoints by itself as its update log grows. One
that is made now makes the next start quick. Ctrl-C calls it off.

Example:
  todana checkpoint 127.0.0.1:11211";

/// What `checkpoint` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The server: host:port, todana://host:port, todanas://host:port (TLS) or unix:/path
    // Its value may hold a password.
    #[arg(
        value_name = "SERVER",
        env = "TODANA_SERVER",
        hide_env_values = true,
        default_value = "127.0.0.1:11211"
    )]
    server: Destination,
    #[command(flatten)]
    login: ClientLogin,
    #[command(flatten)]
    tls: ClientTls,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let interruption = Interruption::watch()?;
    let mut connection = source::connect(&arguments.server, &arguments.login, &arguments.tls)?;
    connection.give_up_when(interruption.flag());
    let bar = progress(None, "{spinner} the server makes a checkpoint {elapsed}");
    bar.enable_steady_tick(Duration::from_millis(100));
    let made = connection.checkpoint();
    bar.finish_and_clear();
    interruption.check()?;
    let Made { position, records, len, took_ms } = made?;
    let took_s = took_ms as f64 / 1000.0;
    writeln!(
        std::io::stdout(),
        "a checkpoint of {records} records, {len} bytes, in {took_s:.1} s; the log is needed from {position} on"
    )?;
    Ok(())
}
