//! Reads the configuration of a running proxy again: at a signal, and when a list of servers has
//! changed, in a file or at a server that is asked for it.

use super::discovery;
use crate::CommandFailure;
use crate::amount::amount;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use todana_client::Address;
use todana_client::ring::ServerEntry;
use todana_server::{NOTICE, ProxyReloader, ServerOptions};

/// The interval in which files are checked for changes.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The number of checks after which servers are asked for their lists.
const ASK_EVERY: u32 = 10;

/// Reads the options again.
pub(super) type OptionsSource = Box<dyn Fn() -> Result<ServerOptions, CommandFailure> + Send + Sync>;

/// The configuration of a running proxy.
pub(super) struct LiveConfiguration {
    source: OptionsSource,
    reloader: ProxyReloader,
    threads: usize,
    /// Held during a reload, so that an older configuration never replaces a newer one.
    reloading: Mutex<()>,
    watched: Mutex<WatchedLists>,
}

/// The lists of servers.
#[derive(Default)]
struct WatchedLists {
    sources: ListSources,
    /// The thread that checks the lists. It starts with the first list.
    watcher: Option<JoinHandle<()>>,
}

/// The sources of lists, and their last content.
#[derive(Default)]
struct ListSources {
    files: Vec<(PathBuf, FileStamp)>,
    clusters: Vec<(Address, Vec<ServerEntry>)>,
}

/// The modification time, inode and length of a file, of which one differs after a change. `None`
/// if there is no file.
type FileStamp = Option<(i64, i64, u64, u64)>;

fn stamp(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.ino(), metadata.len()))
}

impl LiveConfiguration {
    /// Watches the lists of the options with which the proxy has started.
    pub(super) fn new(
        source: OptionsSource,
        reloader: ProxyReloader,
        options: &ServerOptions,
    ) -> Arc<LiveConfiguration> {
        let (watched, threads) = (Mutex::default(), options.limits.threads);
        let live = LiveConfiguration { source, reloader, threads, reloading: Mutex::default(), watched };
        let live = Arc::new(live);
        live.watch(ListSources::of(options));
        live
    }

    /// Reads the options again and serves with them. Otherwise logs why the old ones stay.
    pub(super) fn reload(self: &Arc<Self>) {
        let _reloading = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match (self.source)() {
            Ok(options) => {
                // A change during the reload is found by the next check.
                let files = ListSources::of(&options);
                let proxy = options.proxy.clone().unwrap_or_default();
                self.reloader.reload(&proxy).map(|()| (options, files)).map_err(|error| error.to_string())
            }
            Err(failure) => {
                self.reloader.note_failure();
                Err(failure.message().to_string())
            }
        };
        match outcome {
            Ok((options, files)) => {
                let pools = options.proxy.iter().flat_map(|proxy| proxy.pools.values());
                let servers = pools.map(|pool| pool.servers.len()).sum::<usize>();
                let servers = amount(servers as u64, "server");
                tracing::info!(target: NOTICE, "configuration: read again; proxy of {servers}");
                if options.limits.threads != self.threads {
                    tracing::warn!("configuration: the number of threads changes at the next start");
                }
                self.watch(files);
            }
            Err(error) => tracing::error!("configuration: not used, the old one stays: {error}"),
        }
    }

    fn watch(self: &Arc<Self>, sources: ListSources) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let is_empty = sources.files.is_empty() && sources.clusters.is_empty();
        watched.sources = sources;
        if watched.watcher.is_none() && !is_empty {
            let live = Arc::clone(self);
            let watcher = std::thread::Builder::new().name("servers-file".into());
            let watcher = watcher.spawn(move || {
                for number in (1..=ASK_EVERY).cycle() {
                    std::thread::sleep(CHECK_EVERY);
                    if live.have_files_changed() || (number == ASK_EVERY && live.have_clusters_changed()) {
                        live.reload();
                    }
                }
            });
            if let Err(error) = &watcher {
                tracing::error!("servers-file: changes are not noticed: {error}");
            }
            watched.watcher = watcher.ok();
        }
    }

    /// Returns true if a file has changed since the previous call.
    fn have_files_changed(&self) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_changed = false;
        for (path, before) in &mut watched.sources.files {
            let now = stamp(path);
            is_changed |= std::mem::replace(before, now) != now;
        }
        is_changed
    }

    /// Returns true if a server lists other servers than before. One that does not answer changes
    /// nothing.
    fn have_clusters_changed(&self) -> bool {
        let clusters = self.watched.lock().unwrap_or_else(PoisonError::into_inner).sources.clusters.clone();
        let is_other = |(place, before): &(Address, Vec<ServerEntry>)| match discovery::servers_of(place) {
            Ok(servers) => servers != *before,
            Err(problem) => {
                tracing::warn!("configuration: {problem}; the servers stay");
                false
            }
        };
        clusters.iter().any(is_other)
    }
}

impl ListSources {
    fn of(options: &ServerOptions) -> ListSources {
        let pools = || options.proxy.iter().flat_map(|proxy| proxy.pools.values());
        let files = pools().filter_map(|pool| pool.servers_file.clone());
        let clusters = pools().filter_map(|pool| Some((pool.discover.clone()?, pool.servers.clone())));
        ListSources {
            files: files.map(|path| (path.clone(), stamp(&path))).collect(),
            clusters: clusters.collect(),
        }
    }
}
