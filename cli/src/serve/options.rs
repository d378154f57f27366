//! Converts the arguments of `todana serve` to the options of the server.

use super::ServeArguments;
use super::values::{ExtendedWord, RecordCompression, SnapshotPacking};
use std::path::PathBuf;
use std::time::Duration;
use todana_server::{
    CheckpointOptions, DataDirectoryOptions, DatabaseName, DatabaseOptions, DatabaseSpec, DatabaseStorage,
    KyotoMode, KyotoOptions, LimitOptions, ListenOptions, LogFormat, MemoryOptions, ObservationOptions,
    ProtocolOptions, ServerOptions, SlowRequestOptions, SnapshotCompression, SnapshotOptions, TraceOptions,
    TyrantMode, TyrantOptions,
};

impl ServeArguments {
    /// Converts the arguments. The error names the wrong option.
    pub(super) fn into_options(self) -> Result<(ServerOptions, LogFormat), String> {
        let listen = self.network.listen_options()?;
        let replication = self.replication()?;
        let (database, data, further) = self.databases()?;
        let sync = self.sync;
        let tcp_port = self.network.unix_socket.is_none().then_some(self.network.port);
        let admin = self.network.admin(tcp_port);
        let snapshots = self.snapshots.map(|directory| SnapshotOptions {
            directory,
            interval: Duration::from_secs(self.snapshot_interval),
            packing: match self.snapshot_packing {
                SnapshotPacking::None => SnapshotCompression::None,
                SnapshotPacking::Zlib => SnapshotCompression::Zlib,
            },
        });
        let negative = [ExtendedWord::NegativeIsSliding, ExtendedWord::NegativeIsExpired];
        let mut negative = self.extended.iter().copied().filter(|word| negative.contains(word));
        let options = ServerOptions {
            proxy: None,
            listen: ListenOptions {
                udp_port: match self.udp_port {
                    0 => None,
                    port => Some(u16::try_from(port).unwrap_or(0)),
                },
                udp_reply_max: usize::try_from(self.udp_reply_max).unwrap_or(usize::MAX),
                ..listen
            },
            memory: MemoryOptions {
                limit_mib: self.memory_limit,
                refuse_when_full: self.disable_evictions,
                evict_for: self.evict_for.into(),
                emulate_full: self.extended.contains(&ExtendedWord::EmulateFull),
                stores_plain: self.compress == RecordCompression::Never,
            },
            protocols: ProtocolOptions {
                protocol: self.process.dialect(),
                negative_is_sliding: negative.next_back() == Some(ExtendedWord::NegativeIsSliding),
                http_hosts: self.http_host,
                debug_commands: self.extended.contains(&ExtendedWord::DebugCommands),
                authentication: self.network.authentication()?,
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
                verbosity: self.process.verbose,
                pid_file: self.process.pidfile.clone(),
                admin,
                prefix_delimiter: self.prefix_delimiter,
                track_sizes: self.track_sizes,
                traces: self.trace_to.map(|collector| TraceOptions { collector, with_keys: self.trace_keys }),
                slow_requests: SlowRequestOptions {
                    slow_from: Some(Duration::from_millis(self.slow_request.into()))
                        .filter(|from| !from.is_zero()),
                    large_from: Some(self.large_request).filter(|from| *from > 0),
                },
                ..ObservationOptions::default()
            },
            limits: LimitOptions {
                threads: self.threads,
                item_size_max: self.max_item_size,
                flush_allowed: !self.process.disable_flush_all,
                shutdown_allowed: self.enable_shutdown,
                dump_allowed: !self.disable_dumping,
                watch_allowed: !self.disable_watch,
                ..self.network.limits()
            },
        };
        options.validate().map_err(|error| error.to_string())?;
        Ok((options, self.process.log_format()))
    }

    /// Returns the first database, the place of its data, and the other databases.
    #[allow(clippy::type_complexity, reason = "three fields of the server's options")]
    fn databases(
        &self,
    ) -> Result<(Option<DatabaseName>, Option<DataDirectoryOptions>, Vec<DatabaseSpec>), String> {
        let mut names = if self.databases.is_empty() { &self.database } else { &self.databases }.iter();
        let mut directory = self.data_dir.clone();
        let (mut is_first_in_memory, mut has_replica_log) = (true, false);
        let mut place = |name: &DatabaseName| match name.kind.storage() {
            DatabaseStorage::Cluster => Ok(None),
            DatabaseStorage::Files => match &self.replica_log {
                Some(log) if !std::mem::replace(&mut has_replica_log, true) => {
                    let is_for_replicas = true;
                    // The database's own files decide which changes are durable.
                    let sync = DatabaseOptions::default().sync;
                    Ok(Some(DataDirectoryOptions { is_for_replicas, sync, ..self.place(log.clone()) }))
                }
                Some(_) => {
                    Err(format!("--replica-log: database \"{name}\": only one hash on disk can have it"))
                }
                None => Ok(None),
            },
            DatabaseStorage::FilesAndLog => Ok(name.path.clone().map(|path| self.place(path))),
            DatabaseStorage::Memory => {
                let Some(directory) = &directory else { return Ok(None) };
                if std::mem::take(&mut is_first_in_memory) {
                    return Ok(Some(self.place(directory.clone())));
                }
                // The folder of each other database lies in the data directory, beside the files of
                // the first one.
                match name.alias.as_deref() {
                    Some(alias) if DataDirectoryOptions::reserves(alias) => {
                        Err(format!("database \"{name}\": the name {alias} is reserved in a data directory"))
                    }
                    Some(alias) => Ok(Some(self.place(directory.join(alias)))),
                    None => Err(format!(
                        "database \"{name}\": with --data-dir, further databases in memory need a name, as in NAME={name}"
                    )),
                }
            }
        };
        let Some(first) = names.next() else {
            if self.replica_log.is_some() {
                return Err("--replica-log: needs a hash on disk, as in ./x.hash".into());
            }
            return Ok((None, directory.take().map(|directory| self.place(directory)), Vec::new()));
        };
        let data = place(first)?;
        let further = names.map(|name| Ok(DatabaseSpec { name: name.clone(), data: place(name)? }));
        let further = further.collect::<Result<Vec<DatabaseSpec>, String>>()?;
        if self.replica_log.is_some() && !has_replica_log {
            return Err(format!(
                "--replica-log: needs a hash on disk; database \"{first}\" has an update log of its own"
            ));
        }
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
}
