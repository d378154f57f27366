//! What a server can be told.

use crate::addresses::{PlaceTls, Speech};
use crate::replica::Replication;
use crate::snapshots::SnapshotOptions;
use crate::tls::TlsOptions;
use crate::udp::message::MESSAGE_LEN_MAX;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use todana::checkpoint::CheckpointOptions;
use todana::update_log::{LogOptions, Sync};
use todana::{Catalog, Kind, Name};
use todana_protocol::memcached::Choice;

/// The least memory limit. Some 2 MiB are taken before the first record.
const MEMORY_LIMIT_MIN_MIB: u64 = 4;

/// How clients say who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// They do not: whoever can connect is served.
    #[default]
    None,
    /// By SASL PLAIN over the binary protocol, which is then the only one of memcached's. The file has lines `user:password`, the
    /// password hashed as by [`password_line`](crate::password_line), or plain.
    Sasl(PathBuf),
    /// By a password of the same file, over either protocol: SASL PLAIN over the binary one, a token `user password` over the
    /// text one.
    Passwords(PathBuf),
    /// By a token over the text protocol, which is then the only one of memcached's. The file has up to eight lines `user:password`.
    Text(PathBuf),
}

/// Where Kyoto Tycoon's protocols are spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kyoto {
    /// Nowhere: connections that begin with them are closed, as memcached does.
    #[default]
    Off,
    /// At memcached's ports, unless they are for one of its protocols alone; a connection's first bytes tell. Where clients have to
    /// log in, whichever [`Authentication`] it is, they do so with each HTTP request (`Basic`), and speak the binary protocol behind
    /// such a one.
    Beside,
    /// Nothing else is spoken, but at addresses that say what by `proto[...]:`.
    Only,
}

/// How memcached is spoken in the manner of Kyoto Tycoon's plug-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompatiblePort {
    /// Flags are kept, as four bytes behind the value, where Kyoto Tycoon's clients see them; otherwise they are dropped.
    pub keeps_flags: bool,
    /// Its clients may change nothing.
    pub is_read_only: bool,
    /// There are queues of messages: `set` puts one at the end, `get` takes the first, and waits for one so long at most, and `delete`
    /// acknowledges it; what is not acknowledged is there again when its connection is closed. The first database has to be ordered.
    pub queue_wait: Option<Duration>,
}

/// What a server can be told. The names are memcached's where it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Addresses to listen on: `host`, `host:port`, `[v6]:port`, `*` for all. Empty: 127.0.0.1. Before them may stand
    /// `notls:`, `btls:` (without client certificates) or `mtls:` (with), and `proto[ascii]:`, `proto[binary]:` or
    /// `proto[auto]:` for what is spoken there instead of [`protocol`](Options::protocol).
    pub listen: Vec<String>,
    /// The TCP port for addresses that name none; 0 lets the system choose.
    pub port: u16,
    /// False: not over TCP.
    pub tcp: bool,
    /// The UDP port for addresses that name none; 0 lets the system choose, `None` is no UDP.
    pub udp_port: Option<u16>,
    /// All replies to one UDP request together, in bytes; whatever is longer is answered by an error. Senders of datagrams
    /// can be forged, and then the replies go to a victim.
    pub udp_reply_max: usize,
    /// Takes what memcached takes beside TLS, and what is refused else: UDP, which is served in clear, and listeners that ask
    /// for client certificates without an authority to check them by, where each handshake fails.
    pub lenient_tls: bool,
    /// Listen on this Unix socket instead of TCP.
    pub unix_socket: Option<PathBuf>,
    /// Its permissions.
    pub unix_mask: u32,
    /// The anonymous memory of the process (`RssAnon`) in MiB; 0 for no limit.
    pub memory_limit_mib: u64,
    /// Refuse writes at the limit instead of evicting.
    pub refuse_when_full: bool,
    /// Connections served at once.
    pub connections_max: usize,
    /// True refuses connections over that number; false leaves them waiting to be accepted.
    pub connections_refused: bool,
    /// Seconds after which an unused TCP connection is closed; 0 for never.
    pub idle_timeout_s: u32,
    /// Connections may be unused for as long as they like between requests, so that only the rest of a request has to come in time.
    pub idle_between_requests: bool,
    /// Worker threads.
    pub threads: usize,
    /// The largest item in bytes, by memcached's size rule.
    pub item_size_max: u64,
    /// 0 errors and warnings, 1 notices too, 2 connections too.
    pub verbosity: u8,
    /// From verbosity 2 on, tell each request and its reply on standard error, in memcached's words, in place of what logs
    /// have to say of connections.
    pub tells_requests: bool,
    /// Shown as `cas_enabled` by `stats settings`, and no more: an unused CAS id takes no memory here.
    pub cas_enabled: bool,
    /// Write the process id here.
    pub pid_file: Option<PathBuf>,
    /// Connections that may wait to be accepted.
    pub listen_backlog: u32,
    /// Requests of one connection in a row before others get a turn. The keys of one `get` line are one request; replies
    /// that fill the output buffer end a turn sooner.
    pub requests_per_event: u32,
    /// False refuses `flush_all`.
    pub flush_allowed: bool,
    /// True allows the `shutdown` command.
    pub shutdown_allowed: bool,
    /// Which dialect connections speak; logins over one of them decide by themselves.
    pub protocol: Choice,
    /// Speak TLS on all TCP addresses that do not say otherwise.
    pub tls: Option<TlsOptions>,
    /// A negative time to live in the text commands is a sliding one: so many seconds after the last access
    /// (`-o negative_exptime=sliding`).
    pub negative_is_sliding: bool,
    /// Takes commands that are for tests: `debugtime` (`-o debug_commands`).
    pub debug_commands: bool,
    /// Where Kyoto Tycoon's protocols are spoken.
    pub kyoto: Kyoto,
    /// With [`Kyoto::Only`]: at addresses with `proto[...]:` memcached is spoken as Kyoto Tycoon's plug-in does.
    pub kyoto_plugin: Option<CompatiblePort>,
    /// Kyoto Tycoon's clients may change nothing.
    pub read_only: bool,
    /// The directory of the commands that Kyoto Tycoon's `synchronize` may run; `None`: none.
    pub kyoto_commands: Option<PathBuf>,
    /// The program, in Lua, with the procedures that Kyoto Tycoon's clients call; `None`: none.
    pub kyoto_script: Option<PathBuf>,
    /// The folder in which those procedures may write and read snapshots and copies of databases; `None`: nowhere.
    pub kyoto_files: Option<PathBuf>,
    /// How long a script may take: each call, and loading it.
    pub script_time_max: Duration,
    /// Databases in memory store nothing: what is written is logged for replicas, and gone.
    pub stores_nothing: bool,
    /// What a script may take of memory, in bytes: each of as many at once as there are `threads`.
    pub script_memory_max: usize,
    /// Web pages may send requests of Kyoto Tycoon's, whatever site they are of; false refuses what browsers mark as such.
    pub kyoto_pages_allowed: bool,
    /// Host names by which browsers may ask, of Kyoto Tycoon's protocols and of the admin pages, besides addresses and
    /// `localhost`; if there are any, nobody may by another name.
    pub http_hosts: Vec<String>,
    /// Which changes are born here, and which master is followed.
    pub replication: Replication,
    /// Every store fails for want of memory, to test clients (`-o emulate_full`).
    pub emulate_full: bool,
    /// False refuses lists of keys: `lru_crawler metadump` and `mgdump`, `stats cachedump`, `stats detail`.
    pub dump_allowed: bool,
    /// False refuses `watch`.
    pub watch_allowed: bool,
    /// Bytes of events that wait for a watcher that is slow to read them; what is more is skipped.
    pub watcher_buffer_bytes: usize,
    /// What ends the prefix of a key in `stats detail`, which it also switches on; `None` is a colon, and off.
    pub prefix_delimiter: Option<u8>,
    /// `stats sizes` counts.
    pub track_sizes: bool,
    /// The crawler is there, which serves `lru_crawler`'s lists.
    pub crawler_enabled: bool,
    /// Where the pages for monitoring are; `None` is nowhere.
    pub admin: Option<AdminOptions>,
    /// How clients say who they are.
    pub authentication: Authentication,
    /// Where the data of the first database is kept; `None`: it is gone with the process, or lies in files of its engine's own.
    pub data: Option<DataPlace>,
    /// What keeps the records of the first database, the one that memcached's protocols use; `None` is `mem:hash`.
    pub database: Option<Name>,
    /// When a write counts as made where an engine keeps it in files of its own.
    pub sync: Sync,
    /// Snapshots of databases in memory, as Kyoto Tycoon makes them; `None`: none.
    pub snapshots: Option<SnapshotOptions>,
    /// More databases.
    pub further: Vec<Further>,
}

/// A database besides the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Further {
    /// What keeps its records.
    pub name: Name,
    /// Where its data is kept, as in [`Options::data`].
    pub data: Option<DataPlace>,
}

/// Where and how data is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPlace {
    /// The data directory; it is made if it is not there.
    pub directory: PathBuf,
    /// When a write counts as made.
    pub sync: Sync,
    /// A segment of the update log that has grown to so many bytes is followed by a new one.
    pub segment_len: u64,
    /// So is one that is so old and not empty.
    pub segment_age: Duration,
    /// How checkpoints are made, when, and what is kept of the log behind them.
    pub checkpoints: CheckpointOptions,
    /// It holds an update log for replicas, of a hash on disk, and no records.
    pub is_for_replicas: bool,
}

impl DataPlace {
    /// A directory that is kept as usual.
    pub fn new(directory: PathBuf, sync: Sync) -> DataPlace {
        let LogOptions { segment_len, segment_age, .. } = LogOptions::default();
        let checkpoints = CheckpointOptions::default();
        DataPlace { directory, sync, segment_len, segment_age, checkpoints, is_for_replicas: false }
    }
}

/// Where `/metrics`, `/healthz` and `/readyz` are served, over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminOptions {
    /// Addresses to listen on, written as in [`Options::listen`]. Empty: 127.0.0.1.
    pub listen: Vec<String>,
    /// The port for addresses that name none; 0 lets the system choose.
    pub port: u16,
    /// False: where the address cannot be had, the server does without them and says so.
    pub is_required: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            listen: Vec::new(),
            port: 11211,
            tcp: true,
            udp_port: None,
            udp_reply_max: 16 << 10,
            lenient_tls: false,
            unix_socket: None,
            unix_mask: 0o700,
            memory_limit_mib: 64,
            refuse_when_full: false,
            connections_max: 1024,
            connections_refused: true,
            idle_timeout_s: 0,
            idle_between_requests: false,
            threads: 4,
            item_size_max: 1 << 20,
            verbosity: 0,
            tells_requests: false,
            cas_enabled: true,
            pid_file: None,
            listen_backlog: 1024,
            requests_per_event: 20,
            flush_allowed: true,
            shutdown_allowed: false,
            protocol: Choice::Auto,
            tls: None,
            negative_is_sliding: false,
            debug_commands: false,
            kyoto: Kyoto::Off,
            kyoto_plugin: None,
            read_only: false,
            kyoto_commands: None,
            kyoto_script: None,
            kyoto_files: None,
            script_time_max: Duration::from_secs(5),
            stores_nothing: false,
            script_memory_max: 64 << 20,
            kyoto_pages_allowed: false,
            http_hosts: Vec::new(),
            replication: Replication::default(),
            emulate_full: false,
            dump_allowed: true,
            watch_allowed: true,
            watcher_buffer_bytes: 256 << 10,
            prefix_delimiter: None,
            track_sizes: false,
            crawler_enabled: true,
            admin: None,
            authentication: Authentication::None,
            data: None,
            database: None,
            sync: LogOptions::default().sync,
            snapshots: None,
            further: Vec::new(),
        }
    }
}

/// An option whose value cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsError(String);

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionsError {}

impl Options {
    /// The databases in their order, and where the data of each is kept.
    pub fn databases(&self) -> Vec<Further> {
        let default = || Name::parse("mem:hash").expect("it is the plain name of a kind");
        let first = Further { name: self.database.clone().unwrap_or_else(default), data: self.data.clone() };
        std::iter::once(first).chain(self.further.iter().cloned()).collect()
    }

    /// Checks the databases: each has its place, and is not asked for what it cannot do.
    fn validate_databases(&self) -> Result<(), OptionsError> {
        let databases = self.databases();
        let wrong = |text: String| Err(OptionsError(text));
        if let Err(error) = Catalog::check(databases.iter().map(|database| &database.name)) {
            return wrong(error.to_string());
        }
        for Further { name, data } in &databases {
            let tuning = &name.tuning;
            self.validate_reading(name, data.as_ref())?;
            if tuning.compress && !matches!(name.kind, Kind::MemTree | Kind::DiskHash) {
                return wrong(format!(
                    "database \"{name}\": only mem:tree and PATH.hash are compressed (opts=c, zcomp=)"
                ));
            }
            if tuning.records_max.is_some() && self.refuse_when_full {
                return wrong(format!(
                    "database \"{name}\": at a number of records others go for new ones, which -M does not allow"
                ));
            }
            match (name.kind, data) {
                (Kind::DiskHash, Some(place)) if !place.is_for_replicas => {
                    return wrong(format!(
                        "database \"{name}\" keeps its data at its own path, and takes no data directory"
                    ));
                }
                (Kind::DiskTree, None) => {
                    return wrong(format!("database \"{name}\" needs its own path as its data directory"));
                }
                _ => {}
            }
        }
        let places: Vec<_> = databases.iter().filter_map(|database| database.data.as_ref()).collect();
        let is_twice = |at: usize| places[..at].iter().any(|place| place.directory == places[at].directory);
        if let Some(at) = (1..places.len()).find(|&at| is_twice(at)) {
            return wrong(format!(
                "two databases would keep their data in {}",
                places[at].directory.display()
            ));
        }
        Ok(())
    }

    /// Checks what a database is asked for that is opened for reading (`mode=r`).
    fn validate_reading(&self, name: &Name, data: Option<&DataPlace>) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(format!("database \"{name}\": {text}")));
        let tuning = &name.tuning;
        if !tuning.read_only {
            return Ok(());
        }
        if tuning.truncate {
            return wrong("what may only be read cannot be emptied; leave out the t of mode=");
        }
        if name.path.is_none() && data.is_none() {
            return wrong(
                "nothing is there to be read in memory; give it the data directory that has its records",
            );
        }
        if data.is_some_and(|place| place.is_for_replicas) {
            return wrong("what is only read has no changes for an update log; leave out the log, or mode=r");
        }
        if self.replication.master.is_some() {
            return wrong("a replica changes its databases; leave out mode=r, or the master");
        }
        if self.kyoto_plugin.is_some_and(|port| port.queue_wait.is_some()) {
            return wrong("queues cannot be for reading only (-plex opts=q)");
        }
        Ok(())
    }

    /// Checks what cannot be seen from one option alone.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(text.to_string()));
        self.validate_databases()?;
        if self.kyoto_plugin.is_some_and(|port| port.queue_wait.is_some()) {
            let kind = self.databases()[0].name.kind;
            if !matches!(kind, Kind::MemTree | Kind::DiskTree) {
                return wrong(
                    "queues need an ordered database, and the first one is not: % and PATH.kct are (-plex opts=q)",
                );
            }
            if self.read_only || self.kyoto_plugin.is_some_and(|port| port.is_read_only) {
                return wrong("queues cannot be for reading only (-plex opts=q)");
            }
        }
        if self.threads == 0 || self.threads > 512 {
            return wrong("threads must be 1 to 512 (-t)");
        }
        if self.connections_max == 0 {
            return wrong("connections must be at least 1 (-c)");
        }
        if self.item_size_max < 1024 || self.item_size_max > 1 << 30 {
            return wrong("the item size must be 1k to 1g (-I)");
        }
        if self.memory_limit_mib != 0 && self.memory_limit_mib < MEMORY_LIMIT_MIN_MIB {
            return wrong("the memory limit must be at least 4 MiB, or 0 for none (-m)");
        }
        if self.memory_limit_mib != 0 && self.item_size_max > (self.memory_limit_mib << 20) / 2 {
            return wrong("the item size may be at most half of the memory limit (-I, -m)");
        }
        if self.memory_limit_mib > 1 << 30 {
            return wrong("the memory limit is in MiB, not in bytes (-m)");
        }
        if self.requests_per_event == 0 {
            return wrong("requests per event must be at least 1 (-R)");
        }
        if self.unix_mask > 0o777 {
            return wrong("the socket's permissions must be octal, at most 777 (-a)");
        }
        if self.udp_reply_max > MESSAGE_LEN_MAX {
            return wrong("a reply over UDP may be at most 87m (--udp-reply-max)");
        }
        if self.udp_port.is_some()
            && matches!(self.authentication, Authentication::Text(_) | Authentication::Passwords(_))
        {
            return wrong("nobody can log in over UDP: give either -U or -Y or -S");
        }
        if self.kyoto_plugin.is_some() && self.authentication != Authentication::None {
            return wrong(
                "nobody can log in at the port of Kyoto Tycoon's plug-in: give either it or logins",
            );
        }
        if self.udp_port.is_some() && self.tls.is_some() && !self.lenient_tls {
            return wrong("there is no TLS over UDP: give either -U or a certificate");
        }
        if self.unix_socket.is_some() && !self.listen.is_empty() {
            return wrong("a Unix socket takes the place of TCP: give either -s or -l");
        }
        let asks = |tls| {
            self.listen
                .iter()
                .flat_map(|list| list.split(','))
                .any(|name| Speech::of(name.trim()).0.tls == tls)
        };
        match &self.tls {
            None if asks(PlaceTls::Basic) || asks(PlaceTls::Mutual) => {
                wrong("btls: and mtls: need a certificate (--tls-cert)")
            }
            Some(tls) if tls.verify_mode > 3 => wrong("the mode for client certificates must be 0 to 3"),
            Some(tls)
                if tls.ca.is_none()
                    && (tls.verify_mode > 0 || asks(PlaceTls::Mutual) && !self.lenient_tls) =>
            {
                wrong(
                    "client certificates are asked for, but there is no authority to check them by (--tls-ca)",
                )
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Options::default().validate(), Ok(()));
    }

    #[test]
    fn impossible_values_are_refused_with_their_option() {
        let logins = Authentication::Text("users".into());
        let cases: [(&str, Options); 8] = [
            ("-U", Options { udp_port: Some(1), authentication: logins, ..Options::default() }),
            ("--udp-reply-max", Options { udp_reply_max: 1 << 27, ..Options::default() }),
            ("-t", Options { threads: 0, ..Options::default() }),
            ("-c", Options { connections_max: 0, ..Options::default() }),
            ("-I", Options { item_size_max: 1000, ..Options::default() }),
            ("-I", Options { item_size_max: 40 << 20, ..Options::default() }),
            ("-m", Options { memory_limit_mib: 3, ..Options::default() }),
            ("-R", Options { requests_per_event: 0, ..Options::default() }),
        ];
        for (option, options) in cases {
            let error = options.validate().expect_err(option).to_string();
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn only_a_tree_in_memory_and_a_hash_on_disk_are_asked_to_compress() {
        let names = [
            ("%#opts=c", true),
            ("mem:tree#zcomp=zstd", true),
            ("x.hash#zcomp=zstd", true),
            ("*#opts=c", false),
        ];
        for (name, is_done) in names {
            let name = Name::parse(name).unwrap();
            let options = Options { database: Some(name), ..Options::default() };
            assert_eq!(options.validate().is_ok(), is_done, "{:?}", options.database);
        }
    }
}
