//! `todana promote`: makes a replica the master.

use crate::CommandFailure;
use crate::command_target::CommandTarget;
use crate::server_options::ServerOptions;
use clap::Args;
use std::io::Write;

pub(crate) const AFTER_HELP: &str = "\
The server stops following its master and takes changes. As soon as it reaches
its former master, that server refuses changes. Restart the former master and
the other replicas with --replicate todana://SERVER. docs/replication.md
describes the procedure.

Example:
  todana promote 127.0.0.1:11312";

/// The arguments of `todana promote`.
#[derive(Debug, Args)]
pub(crate) struct PromoteArguments {
    /// The replica: host:port, todana://host:port, todanas://host:port (TLS) or unix:/path; or -S
    /// [default: TODANA_SERVER, or 127.0.0.1:11211]
    #[arg(value_name = "SERVER")]
    place: Option<CommandTarget>,
    /// Promote the server even if it does not have all records of its master
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerOptions,
}

pub(crate) fn run(arguments: &PromoteArguments) -> Result<(), CommandFailure> {
    let PromoteArguments { place, force, server } = arguments;
    let destination = server.place(place.as_ref())?.server()?;
    let mut connection = server.connect(&destination)?;
    let epoch = connection.promote(*force)?;
    writeln!(std::io::stdout(), "the server is the master, in epoch {epoch}")?;
    Ok(())
}
