//! The options that select a server, one of its databases, and a login. They are the same for every
//! client command.

use crate::CommandFailure;
use crate::client_login::ClientLogin;
use crate::client_tls::ClientTls;
use crate::command_target::CommandTarget;
use crate::suggestions::did_you_mean;
use todana_client::{Connection, Error, LoginDestination, SocketTimeouts};

/// The variable that names the server.
const VARIABLE: &str = "TODANA_SERVER";

const DEFAULT: &str = "127.0.0.1:11211";

/// The server or database of a command, with the options for logging in and TLS.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct ServerOptions {
    /// host:port, todana://[USER:PASSWORD@]host:port, todanas://... (TLS), unix:/path,
    /// ring:a,b:11212,ring=pymemcache, or a database ./x.hash [default: TODANA_SERVER, or
    /// 127.0.0.1:11211]
    #[arg(short = 'S', long = "server", visible_alias = "db", value_name = "SERVER")]
    server: Option<CommandTarget>,
    /// Database of the server, by number or name [default: the first]
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    #[command(flatten)]
    pub(crate) login: ClientLogin,
    #[command(flatten)]
    pub(crate) tls: ClientTls,
}

impl ServerOptions {
    /// Returns the place that `-S` or the environment names. `has_word` is true if another word of
    /// the command line names a place; then `-S` is an error.
    pub(crate) fn named(&self, has_word: bool) -> Result<Option<CommandTarget>, CommandFailure> {
        match &self.server {
            // The word may contain a password, so the message does not quote it.
            Some(_) if has_word => {
                Err(CommandFailure::usage("-S: the first word names a server too; give only one"))
            }
            Some(server) => Ok(Some(server.clone())),
            None if has_word => Ok(None),
            None => match std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()) {
                None => Ok(None),
                Some(text) => {
                    let place = text.parse().map(Some);
                    place.map_err(|error: String| CommandFailure::usage(format!("{VARIABLE}: {error}")))
                }
            },
        }
    }

    /// Returns true if `-S` is given.
    pub(crate) fn has_server(&self) -> bool {
        self.server.is_some()
    }

    /// Returns the place that the word names. Without a word, returns the place of `-S`, of the
    /// environment, or the default.
    pub(crate) fn place(&self, word: Option<&CommandTarget>) -> Result<CommandTarget, CommandFailure> {
        match (word, self.named(word.is_some())?) {
            (Some(word), _) => Ok(word.clone()),
            (None, Some(place)) => Ok(place),
            (None, None) => DEFAULT.parse().map_err(CommandFailure::usage),
        }
    }

    /// Returns these options, completed by those of a shell.
    pub(crate) fn within(&self, shell: &ServerOptions) -> ServerOptions {
        if self.server.is_some() {
            return self.clone();
        }
        let login = if self.login == ClientLogin::default() { &shell.login } else { &self.login };
        let tls = if self.tls == ClientTls::default() { &shell.tls } else { &self.tls };
        ServerOptions {
            server: shell.server.clone(),
            database: self.database.as_ref().or(shell.database.as_ref()).cloned(),
            login: login.clone(),
            tls: tls.clone(),
        }
    }

    /// Returns these options with another place.
    pub(crate) fn naming(&self, place: CommandTarget) -> ServerOptions {
        ServerOptions { server: Some(place), ..self.clone() }
    }

    /// Returns the server at a destination, together with the options for reaching it.
    pub(crate) fn at(&self, destination: LoginDestination) -> ServerTarget {
        ServerTarget { destination, options: self.clone() }
    }

    /// Returns true if `--database` is given.
    pub(crate) fn has_database(&self) -> bool {
        self.database.is_some()
    }

    /// Fails if `--database` is given although the place is not a server.
    pub(crate) fn expect_no_database(&self) -> Result<(), CommandFailure> {
        match &self.database {
            Some(_) => Err(CommandFailure::usage("--database: needs a server with several databases")),
            None => Ok(()),
        }
    }

    /// Returns the number of the selected database, or that of the first if none is selected.
    pub(crate) fn database_number(&self, connection: &mut Connection) -> Result<u32, CommandFailure> {
        let Some(wanted) = &self.database else { return Ok(0) };
        if let Ok(number) = wanted.parse() {
            return Ok(number);
        }
        let all = connection.stats("databases").map_err(without_databases)?;
        let number = all.iter().find_map(|(name, value)| {
            let number = name.strip_suffix(":name").filter(|_| value == wanted)?;
            number.parse().ok()
        });
        number.ok_or_else(|| {
            let names = all.iter().filter(|(name, _)| name.ends_with(":name"));
            let names: Vec<&str> = names.map(|(_, value)| value.as_str()).collect();
            let hint = match did_you_mean(wanted, &names) {
                none if none.is_empty() => "; `todana stats databases` lists its databases".into(),
                hint => hint,
            };
            CommandFailure::trouble(format!("--database {wanted}: the server has no such database{hint}"))
        })
    }

    /// Connects, and logs in if the options name a user.
    pub(crate) fn connect(&self, destination: &LoginDestination) -> Result<Connection, CommandFailure> {
        let tls = self.tls.load(&[&destination.address])?;
        let login = self.login.at(destination)?;
        let mut connection =
            Connection::open_with(&destination.address, SocketTimeouts::default(), tls.as_ref())?;
        if let Some(login) = login {
            connection.log_in(&login)?;
        }
        Ok(connection)
    }
}

/// A server, together with the options for reaching it.
pub(crate) struct ServerTarget {
    pub(crate) destination: LoginDestination,
    pub(crate) options: ServerOptions,
}

impl ServerTarget {
    /// Connects, logs in if the options name a user, and selects the database.
    pub(crate) fn connect(&self) -> Result<Connection, CommandFailure> {
        let mut connection = self.options.connect(&self.destination)?;
        let number = self.options.database_number(&mut connection)?;
        if number > 0 {
            connection.use_database(number).map_err(without_databases)?;
        }
        Ok(connection)
    }
}

/// Returns the failure for a server that has only one database and does not know the command that
/// selects another.
pub(crate) fn without_databases(error: Error) -> CommandFailure {
    match error {
        Error::Refused(refusal) if refusal.line == "ERROR" => {
            CommandFailure::trouble("--database: the server has only one database")
        }
        error => error.into(),
    }
}
