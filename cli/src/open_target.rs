//! The place of a command's records, with its connection or its open database. A shell keeps it
//! open from one command to the next.

use crate::command_target::{CommandTarget, LocalDatabase};
use crate::record_servers::RecordServers;
use crate::server_options::ServerOptions;
use crate::{CommandFailure, database};
use std::fmt;
use todana::Db;

/// A server, a ring, or a database on disk. A connection or a database is opened when a command
/// needs it.
pub(crate) enum OpenTarget {
    /// One server, or the servers of a ring.
    Servers(RecordServers),
    /// A database on disk.
    Database(OpenDatabase),
}

impl OpenTarget {
    /// Returns the place, with the options for reaching it.
    pub(crate) fn of(options: &ServerOptions, place: CommandTarget) -> Result<OpenTarget, CommandFailure> {
        match place {
            CommandTarget::Server(destination) => {
                Ok(OpenTarget::Servers(RecordServers::one(options.at(destination))))
            }
            CommandTarget::Ring(ring) => RecordServers::of_ring(options, ring).map(OpenTarget::Servers),
            CommandTarget::Database(name) => {
                options.expect_no_database()?;
                Ok(OpenTarget::Database(OpenDatabase { name, db: None }))
            }
        }
    }

    /// Returns true if this is the database of that name, which cannot be opened twice.
    pub(crate) fn is_database(&self, place: &CommandTarget) -> bool {
        match (self, place) {
            (OpenTarget::Database(database), CommandTarget::Database(name)) => database.name == *name,
            _ => false,
        }
    }
}

impl fmt::Display for OpenTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenTarget::Servers(servers) => servers.fmt(f),
            OpenTarget::Database(database) => database.name.fmt(f),
        }
    }
}

/// The place of a command: that which the command names, or that of the shell it is typed in.
#[derive(Default)]
pub(crate) struct CommandPlace<'s> {
    /// The shell's place and options.
    pub(crate) shell: Option<(&'s mut OpenTarget, &'s ServerOptions)>,
    own: Option<OpenTarget>,
}

impl<'s> CommandPlace<'s> {
    /// Returns the place of a command that is typed in a shell.
    pub(crate) fn in_shell(target: &'s mut OpenTarget, options: &'s ServerOptions) -> CommandPlace<'s> {
        CommandPlace { shell: Some((target, options)), own: None }
    }

    /// Returns the place of a command with these options and, if given, this first word.
    pub(crate) fn of(
        &mut self,
        options: &ServerOptions,
        word: Option<&CommandTarget>,
    ) -> Result<&mut OpenTarget, CommandFailure> {
        let place = match &mut self.shell {
            Some((target, _))
                if *options == ServerOptions::default()
                    && word.is_none_or(|word| target.is_database(word)) =>
            {
                return Ok(target);
            }
            Some((_, shell)) if word.is_none() => {
                let options = options.within(shell);
                OpenTarget::of(&options, options.place(None)?)?
            }
            _ => OpenTarget::of(options, options.place(word)?)?,
        };
        Ok(self.own.insert(place))
    }
}

/// A database on disk, opened by the first command that needs it.
pub(crate) struct OpenDatabase {
    pub(crate) name: LocalDatabase,
    db: Option<Db>,
}

impl OpenDatabase {
    /// Returns the database. If it is not open, opens it as [`database::open`] does.
    pub(crate) fn open(&mut self, makes: bool) -> Result<&Db, CommandFailure> {
        let db = match self.db.take() {
            Some(db) => db,
            None => database::open(&self.name, makes)?,
        };
        Ok(self.db.insert(db))
    }
}
