//! The servers of a command on records: one server, or those of a ring.

use crate::CommandFailure;
use crate::command_target::needs_one_server;
use crate::server_options::{ServerOptions, ServerTarget};
use std::fmt;
use todana_client::{Address, Connection, LoginDestination, RingConnection, RingDestination, SocketTimeouts};

/// The servers of a command, with connections that are opened when they are needed.
pub(crate) enum RecordServers {
    /// One server.
    One { target: Box<ServerTarget>, connection: Option<Connection> },
    /// The servers of a ring.
    Ring { ring: RingDestination, targets: Vec<ServerTarget>, connections: Box<RingConnection> },
}

impl RecordServers {
    pub(crate) fn one(target: ServerTarget) -> RecordServers {
        RecordServers::One { target: Box::new(target), connection: None }
    }

    /// Returns the servers of a ring. All have the login and the TLS settings of the options.
    pub(crate) fn of_ring(
        options: &ServerOptions,
        ring: RingDestination,
    ) -> Result<RecordServers, CommandFailure> {
        options.expect_no_database()?;
        if !ring.options.kind.uses_weights() && ring.servers.iter().any(|server| server.weight > 1) {
            eprintln!("todana: ring {}: ignores weights", ring.options.kind);
        }
        let destination =
            |address: &Address| LoginDestination { address: address.clone(), user: None, password: None };
        let targets: Vec<ServerTarget> =
            ring.servers.iter().map(|server| options.at(destination(&server.address))).collect();
        let addresses: Vec<&Address> = ring.servers.iter().map(|server| &server.address).collect();
        let tls = options.tls.load(&addresses)?;
        let login = options.login.at(&destination(addresses[0]))?;
        let connections = RingConnection::open_with(&ring, SocketTimeouts::default(), tls, login);
        let connections = connections.map_err(|error| CommandFailure::usage(error.to_string()))?;
        Ok(RecordServers::Ring { ring, targets, connections: Box::new(connections) })
    }

    /// Returns all servers.
    pub(crate) fn targets(&self) -> &[ServerTarget] {
        match self {
            RecordServers::One { target, .. } => std::slice::from_ref(&**target),
            RecordServers::Ring { targets, .. } => targets,
        }
    }

    /// Returns the only server. Fails for a ring.
    pub(crate) fn only(&self) -> Result<&ServerTarget, CommandFailure> {
        match self {
            RecordServers::One { target, .. } => Ok(target),
            RecordServers::Ring { ring, .. } => Err(needs_one_server(ring)),
        }
    }

    /// Returns the index of the server of a key.
    pub(crate) fn server_of(&self, key: &[u8]) -> usize {
        match self {
            RecordServers::One { .. } => 0,
            RecordServers::Ring { connections, .. } => connections.server_of(key),
        }
    }

    /// Drops the connections that servers have closed since their last reply, such as idle ones.
    /// The next request opens them again.
    pub(crate) fn drop_ended(&mut self) {
        match self {
            RecordServers::One { connection, .. } => drop(connection.take_if(|open| open.has_ended())),
            RecordServers::Ring { connections, .. } => connections.drop_ended(),
        }
    }

    /// Returns the connection to a server, by its index.
    pub(crate) fn connection(&mut self, server: usize) -> Result<&mut Connection, CommandFailure> {
        match self {
            RecordServers::One { target, connection } => {
                let open = match connection.take().filter(|open| !open.is_lost()) {
                    Some(open) => open,
                    None => target.connect()?,
                };
                Ok(connection.insert(open))
            }
            RecordServers::Ring { connections, .. } => Ok(connections.connection(server)?),
        }
    }

    /// Returns the connection to the server of a key.
    pub(crate) fn connection_of(&mut self, key: &[u8]) -> Result<&mut Connection, CommandFailure> {
        self.connection(self.server_of(key))
    }
}

impl fmt::Display for RecordServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordServers::One { target, .. } => target.destination.fmt(f),
            RecordServers::Ring { ring, .. } => ring.fmt(f),
        }
    }
}
