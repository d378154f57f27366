//! Converts the arguments of `todana serve` to the options of the server.

use super::ServeArguments;
use super::values::{ExtendedWord, LogLineFormat, ServedProtocol, SnapshotPacking, TlsVersion};
use std::path::PathBuf;
use std::time::Duration;
use todana_server::{
    AdminOptions, AuthenticationMode, CheckpointOptions, DataDirectoryOptions, DatabaseName, DatabaseOptions,
    DatabaseSpec, DatabaseStorage, DialectChoice, KyotoMode, KyotoOptions, LimitOptions, ListenOptions,
    LogFormat, MemoryOptions, ObservationOptions, ProtocolOptions, ServerOptions, SnapshotCompression,
    SnapshotOptions, TlsOptions, TyrantMode, TyrantOptions,
};

impl ServeArguments {
    /// Converts the arguments. The error names the wrong option.
    pub(super) fn into_options(self) -> Result<(ServerOptions, LogFormat), String> {
        let tls = self.tls()?;
        let replication = self.replication();
        let (database, data, further) = self.databases()?;
        let sync = self.sync;
        let admin = admin(&self);
        let snapshots = self.snapshots.map(|directory| SnapshotOptions {
            directory,
            interval: Duration::from_secs(self.snapshot_interval),
            packing: match self.snapshot_packing {
                SnapshotPacking::None => SnapshotCompression::None,
                SnapshotPacking::Zlib => SnapshotCompression::Zlib,
            },
        });
        let listen = if self.unix_socket.is_some() { Vec::new() } else { self.listen };
        let negative = [ExtendedWord::NegativeIsSliding, ExtendedWord::NegativeIsExpired];
        let mut negative = self.extended.iter().copied().filter(|word| negative.contains(word));
        let options = ServerOptions {
            proxy: None,
            listen: ListenOptions {
                addresses: listen,
                port: u16::try_from(self.port).unwrap_or(0),
                udp_port: match self.udp_port {
                    0 => None,
                    port => Some(u16::try_from(port).unwrap_or(0)),
                },
                udp_reply_max: usize::try_from(self.udp_reply_max).unwrap_or(usize::MAX),
                unix_socket: self.unix_socket,
                unix_mask: self.unix_mask,
                backlog: self.listen_backlog,
                tls,
                ..ListenOptions::default()
            },
            memory: MemoryOptions {
                limit_mib: self.memory_limit,
                refuse_when_full: self.disable_evictions,
                emulate_full: self.extended.contains(&ExtendedWord::EmulateFull),
            },
            protocols: ProtocolOptions {
                protocol: match self.protocol {
                    ServedProtocol::Auto => DialectChoice::Auto,
                    ServedProtocol::Ascii => DialectChoice::Text,
                    ServedProtocol::Binary => DialectChoice::Binary,
                },
                negative_is_sliding: negative.next_back() == Some(ExtendedWord::NegativeIsSliding),
                http_hosts: self.http_host,
                debug_commands: self.extended.contains(&ExtendedWord::DebugCommands),
                authentication: authentication(self.enable_sasl, self.password_file, self.auth_file)?,
                kyoto: KyotoOptions {
                    spoken: KyotoMode::Beside,
                    script: self.script,
                    script_time_max: Duration::from_secs(self.script_time_limit),
                    script_memory_max: usize::try_from(self.script_memory_limit).unwrap_or(usize::MAX),
                    commands: self.commands,
                    pages_allowed: self.allow_pages,
                    ..KyotoOptions::default()
                },
                tyrant: TyrantOptions { spoken: TyrantMode::Binary, ..TyrantOptions::default() },
                ..ProtocolOptions::default()
            },
            databases: DatabaseOptions {
                snapshots,
                replication,
                data,
                database,
                sync,
                further,
                ..DatabaseOptions::default()
            },
            observation: ObservationOptions {
                verbosity: self.verbose,
                pid_file: self.pidfile,
                admin,
                prefix_delimiter: self.prefix_delimiter,
                track_sizes: self.track_sizes,
                ..ObservationOptions::default()
            },
            limits: LimitOptions {
                connections_max: self.conn_limit,
                connections_refused: !self.conn_limit_waits,
                idle_timeout_s: self.idle_timeout,
                threads: self.threads,
                item_size_max: self.max_item_size,
                requests_per_event: self.max_reqs_per_event,
                flush_allowed: !self.disable_flush_all,
                shutdown_allowed: self.enable_shutdown,
                dump_allowed: !self.disable_dumping,
                watch_allowed: !self.disable_watch,
                ..LimitOptions::default()
            },
        };
        options.validate().map_err(|error| error.to_string())?;
        let log_format = match self.log_format {
            LogLineFormat::Text => LogFormat::Text,
            LogLineFormat::Json => LogFormat::Json,
        };
        Ok((options, log_format))
    }

    /// Returns the first database, the place of its data, and the other databases.
    #[allow(clippy::type_complexity, reason = "three fields of the server's options")]
    fn databases(
        &self,
    ) -> Result<(Option<DatabaseName>, Option<DataDirectoryOptions>, Vec<DatabaseSpec>), String> {
        let mut names = if self.databases.is_empty() { &self.database } else { &self.databases }.iter();
        let mut directory = self.data_dir.clone();
        let mut is_first_in_memory = true;
        let mut place = |name: &DatabaseName| match name.kind.storage() {
            DatabaseStorage::Files => Ok(None),
            DatabaseStorage::FilesAndLog => Ok(name.path.clone().map(|path| self.place(path))),
            DatabaseStorage::Memory => {
                let Some(directory) = &directory else { return Ok(None) };
                if std::mem::take(&mut is_first_in_memory) {
                    return Ok(Some(self.place(directory.clone())));
                }
                // The folder of each other database lies in the data directory, beside the files of
                // the first one.
                match name.alias.as_deref() {
                    Some(alias)
                        if !["log", "checkpoints", "lock", "identity", ".", ".."].contains(&alias) =>
                    {
                        Ok(Some(self.place(directory.join(alias))))
                    }
                    Some(alias) => {
                        Err(format!("database \"{name}\": the name {alias} is reserved in a data directory"))
                    }
                    None => Err(format!(
                        "database \"{name}\": with --data-dir, further databases in memory need a name, as in NAME={name}"
                    )),
                }
            }
        };
        let Some(first) = names.next() else {
            return Ok((None, directory.take().map(|directory| self.place(directory)), Vec::new()));
        };
        let data = place(first)?;
        let further = names.map(|name| Ok(DatabaseSpec { name: name.clone(), data: place(name)? }));
        let further = further.collect::<Result<Vec<DatabaseSpec>, String>>()?;
        if self.data_dir.is_some() && is_first_in_memory {
            return Err(format!(
                "--data-dir: needs a database in memory; database \"{first}\" has its own path"
            ));
        }
        Ok((Some(first.clone()), data, further))
    }

    fn place(&self, directory: PathBuf) -> DataDirectoryOptions {
        // If only one limit is given, the other one does not apply. Without either, no log is kept.
        let all = if self.log_keep_age.is_some() { u64::MAX } else { 0 };
        let log_kept_len = self.log_keep_size.unwrap_or(all);
        let log_kept_age = self.log_keep_age.map_or(Duration::MAX, Duration::from_secs);
        let checkpoints = CheckpointOptions {
            compression: self.checkpoint_compression,
            log_len_min: self.checkpoint_log_size,
            log_kept_len,
            log_kept_age,
            ..CheckpointOptions::default()
        };
        DataDirectoryOptions {
            segment_len: self.log_segment_size,
            segment_age: Duration::from_secs(self.log_segment_age),
            checkpoints,
            ..DataDirectoryOptions::new(directory, self.sync)
        }
    }

    fn tls(&self) -> Result<Option<TlsOptions>, String> {
        let Some(chain) = self.tls_cert.clone() else {
            let orphan = [
                ("--tls-key", self.tls_key.is_some()),
                ("--tls-ca", self.tls_ca.is_some()),
                ("--tls-clients", self.tls_clients.is_some()),
            ];
            return match orphan.iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(format!("{name}: needs --tls-cert")),
                None => Ok(None),
            };
        };
        let required = if self.tls_ca.is_some() { 2 } else { 0 };
        Ok(Some(TlsOptions {
            chain,
            key: self.tls_key.clone(),
            ca: self.tls_ca.clone(),
            verify_mode: self.tls_clients.map_or(required, |clients| clients as u8),
            only_1_3: self.tls_min_version == TlsVersion::V1_3,
            ciphers: self.tls_ciphers.clone(),
            resumption: !self.tls_no_resumption,
            session_cache: !self.tls_no_resumption,
            write_buffer_bytes: None,
        }))
    }
}

/// Returns the kind of login. If the options are incomplete, fails instead of starting a server
/// without logins.
fn authentication(
    sasl: bool,
    passwords: Option<PathBuf>,
    tokens: Option<PathBuf>,
) -> Result<AuthenticationMode, String> {
    match (sasl, passwords, tokens) {
        (true, Some(path), None) => Ok(AuthenticationMode::Passwords(path)),
        (false, None, Some(path)) => Ok(AuthenticationMode::Text(path)),
        (false, None, None) => Ok(AuthenticationMode::None),
        (_, _, Some(_)) => {
            Err("-Y: cannot be combined with -S and --password-file; use one file of users".into())
        }
        (true, None, None) => Err("-S: needs a file of users; add --password-file FILE".into()),
        (false, Some(_), None) => Err("--password-file: needs -S".into()),
    }
}

/// The default port of the admin pages is the TCP port plus this number. The ports directly above
/// the TCP port often belong to other servers.
const ADMIN_PORT_DISTANCE: u16 = 10_000;

/// Returns the options of the admin pages. The default port may be in use, which must not prevent
/// the start of the server.
fn admin(arguments: &ServeArguments) -> Option<AdminOptions> {
    let beside = |port: i32| match u16::try_from(port) {
        // The system chooses the port if it also chooses the TCP port, or if the sum is too large.
        Err(_) | Ok(0) => 0,
        Ok(port) => port.checked_add(ADMIN_PORT_DISTANCE).unwrap_or(0),
    };
    let port = match arguments.admin_port {
        Some(0) => return None,
        Some(port) => u16::try_from(port).unwrap_or(0),
        None if arguments.unix_socket.is_some() => return None,
        None => beside(arguments.port),
    };
    Some(AdminOptions {
        listen: arguments.admin_listen.clone(),
        port,
        is_required: arguments.admin_port.is_some(),
    })
}
