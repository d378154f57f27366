//! The lines that `todana serve` prints when it starts.

use crate::amount::amount;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use todana::update_log::LogPosition;
use todana_server::{
    AuthenticationMode, DataDirectoryOptions, DatabaseName, DatabaseSpec, DatabaseStorage, DialectChoice,
    OpeningReport, ServerOptions, SyncPolicy,
};

/// Returns a text about the durability that `--sync` promises.
fn promise(sync: SyncPolicy) -> String {
    match sync {
        SyncPolicy::Always => "--sync always: every write is on disk before its reply".to_string(),
        SyncPolicy::Every(interval) => {
            let ms = interval.as_millis();
            format!("--sync {ms}: writes are on disk within {ms} ms; a power failure can lose that much")
        }
        SyncPolicy::Never => "--sync never: the kernel decides when writes are on disk".to_string(),
    }
}

const NEW: &str = "; no data found, starting a new database";

/// Returns a text about the loaded data.
fn found(opened: &OpeningReport) -> String {
    if opened.checkpoint.is_none() && opened.end == LogPosition(0) {
        return NEW.trim_start_matches("; ").into();
    }
    let checkpoint = match &opened.checkpoint {
        Some(checkpoint) => format!("a checkpoint of {}, ", amount(checkpoint.records, "record")),
        None => String::new(),
    };
    let (entries, seconds) = (opened.entries, opened.took.as_secs_f64());
    let lost = match opened.lost {
        0 => String::new(),
        lost => format!("; {lost} bytes of the log are marked as lost"),
    };
    format!("loaded {checkpoint}{} of the log in {seconds:.1} s{lost}", amount(entries, "entry"))
}

/// The contents of the lines at the start: program, addresses and an example, then databases, data
/// and warnings.
pub(super) struct StartBanner {
    is_unix: bool,
    /// The certificate by which clients of the example can verify the server.
    certificate: Option<PathBuf>,
    /// True if clients must present a certificate.
    wants_certificate: bool,
    wants_login: bool,
    is_binary: bool,
    /// The memory limit of the databases in memory, or `None` without such databases.
    memory: Option<String>,
    threads: usize,
    data: Option<DataDirectoryOptions>,
    /// The databases, if they were named on the command line.
    databases: Vec<DatabaseSpec>,
    /// For each database, true if it is new.
    new: Vec<bool>,
    sync: SyncPolicy,
    /// The limit and the machine's memory in MiB, if the limit exceeds it.
    excess_mib: Option<(u64, u64)>,
    /// True if all TLS listeners require a client certificate.
    guards_tls: bool,
}

impl StartBanner {
    pub(super) fn of(options: &ServerOptions) -> StartBanner {
        let memory = match (options.memory.limit_mib, options.memory.refuse_when_full) {
            (0, _) => "no memory limit".to_string(),
            (mib, false) => format!("{mib} MiB, then evicting"),
            (mib, true) => format!("{mib} MiB, then refusing writes"),
        };
        let has_memory = options.databases.all().iter().any(|one| one.name.kind.is_in_memory());
        let has_prefix = |prefix: &str| options.listen.addresses.iter().any(|entry| entry.contains(prefix));
        let requires_certificates = options.listen.tls.as_ref().is_some_and(|tls| tls.verify_mode >= 2);
        let certificate = options.listen.tls.as_ref().map(|tls| tls.chain.clone());
        StartBanner {
            is_unix: options.listen.unix_socket.is_some(),
            certificate,
            wants_certificate: requires_certificates,
            wants_login: options.protocols.authentication != AuthenticationMode::None,
            is_binary: options.protocols.protocol == DialectChoice::Binary,
            memory: has_memory.then_some(memory),
            threads: options.limits.threads,
            data: options.databases.data.clone(),
            databases: if options.databases.database.is_some() {
                options.databases.all()
            } else {
                Vec::new()
            },
            new: options.databases.all().iter().map(begins).collect(),
            sync: options.databases.sync,
            excess_mib: has_memory.then(|| excess_mib(options.memory.limit_mib)).flatten(),
            guards_tls: (requires_certificates || has_prefix("mtls:")) && !has_prefix("btls:"),
        }
    }

    /// Returns a line for each database that was named on the command line.
    fn databases(&self) -> String {
        let is_one = self.databases.len() == 1;
        let line = |(number, DatabaseSpec { name, data }): (usize, &DatabaseSpec)| {
            let new = if self.new.get(number) == Some(&true) { NEW } else { "" };
            let place = match (name.kind.storage(), data) {
                (DatabaseStorage::Cluster, _) => "; kept by the cluster".to_string(),
                (DatabaseStorage::Files, _) => format!("{new}; {}", promise(self.sync)),
                // The line `data:` describes the first database.
                (_, Some(_)) if number == 0 => String::new(),
                (_, Some(place)) => {
                    format!(", in {}{new}; {}", place.directory.display(), promise(place.sync))
                }
                (_, None) => ", lost at exit".to_string(),
            };
            let number = if is_one { String::new() } else { format!(" {number}") };
            let alias = name.alias.as_ref().map_or_else(String::new, |alias| format!(" ({alias})"));
            let shown = name.to_string();
            let shown =
                shown.strip_prefix(&format!("{}=", name.alias.as_deref().unwrap_or("\0"))).unwrap_or(&shown);
            let kind =
                if shown == name.kind.word() { String::new() } else { format!(", {}", name.kind.word()) };
            let limit = self.limit(name);
            format!("database{number}{alias}: {shown}{kind}, {limit}{place}\n")
        };
        self.databases.iter().enumerate().map(line).collect()
    }

    /// Returns a text about the limit of a database: its own limit, or the common limit of all
    /// databases in memory.
    fn limit(&self, name: &DatabaseName) -> String {
        let own = [
            name.tuning.records_max.map(|records| format!("at most {}", amount(records, "record"))),
            name.tuning.bytes_max.map(|bytes| format!("at most {}", amount(bytes, "byte"))),
        ];
        let own: Vec<String> = own.into_iter().flatten().collect();
        match &self.memory {
            _ if !own.is_empty() => own.join(" and "),
            Some(memory) if name.kind.is_in_memory() => memory.clone(),
            _ => "no limit".to_string(),
        }
    }

    /// Returns a warning if clients on other machines can reach the server without a login.
    fn warning(&self, listening_on: &[String]) -> String {
        let is_open = |place: &&String| {
            let (is_tls, address) = match place.strip_prefix("todanas://") {
                Some(address) => (true, address),
                None => (false, place.as_str()),
            };
            let address: Option<SocketAddr> = address.parse().ok();
            address.is_some_and(|address| !address.ip().is_loopback()) && !(is_tls && self.guards_tls)
        };
        match listening_on.iter().find(is_open) {
            Some(place) if !self.wants_login => format!(
                "warning: {place}: anyone who can reach it can read and write; require logins (-S or -Y), or listen on this machine only (-l 127.0.0.1)\n"
            ),
            _ => String::new(),
        }
    }

    pub(super) fn print(
        &self,
        listening_on: &[String],
        admin: &[SocketAddr],
        opened: Option<&OpeningReport>,
    ) {
        let persistence =
            if self.databases.iter().any(|one| one.name.kind.storage() == DatabaseStorage::Files)
                || self.data.is_some()
            {
                "on"
            } else {
                "off (--data-dir DIR)"
            };
        let data = match (&self.data, opened) {
            (Some(place), Some(opened)) => {
                format!("data: {}: {}; {}\n", place.directory.display(), found(opened), promise(place.sync))
            }
            _ => String::new(),
        };
        let databases = self.databases();
        let excess = self.excess_mib.map_or_else(String::new, |(limit, all)| {
            format!("warning: -m {limit}: exceeds the {all} MiB of this machine\n")
        });
        let warning = excess + &self.warning(listening_on);
        let memory = self.memory.as_ref().map_or_else(String::new, |memory| format!(" {memory},"));
        let admin_page =
            admin.first().map_or_else(String::new, |place| format!(", admin page: http://{place}/"));
        let text = format!(
            "todana {}: memcached's protocol,{memory} {} threads, persistence: {persistence}{admin_page}\n\
             listening on {}\n\
             try: {}\n{databases}{data}{warning}",
            env!("CARGO_PKG_VERSION"),
            self.threads,
            listening_on.join(", "),
            self.example(listening_on.first().map_or("", String::as_str)),
        );
        // A daemon may have closed standard output. A failure is ignored, and the server serves.
        let mut out = std::io::stdout();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Returns a command by which the user can try the server at this address. Words in capitals
    /// stand for values that only the user knows.
    fn example(&self, place: &str) -> String {
        if self.is_binary {
            return "a client of the binary protocol (the commands of todana speak the text protocol)".into();
        }
        // A relative path needs the prefix `unix:`, because it looks like a host name. A client
        // cannot connect to "all addresses", so that is replaced by a loopback address.
        let mut server = if self.is_unix { format!("unix:{place}") } else { connectable(place) };
        if let (true, Some(certificate)) = (place.starts_with("todanas://"), &self.certificate) {
            server = format!("{server} --tls-ca {}", certificate.display());
            if self.wants_certificate {
                server += " --tls-cert CERTIFICATE --tls-key KEY";
            }
        }
        if self.wants_login {
            server += " --user NAME --password-file FILE";
        }
        format!("todana set hello world -S {server} && todana get hello -S {server}")
    }
}

/// Returns the limit and the memory of the machine in MiB, if the limit exceeds the memory.
fn excess_mib(limit: u64) -> Option<(u64, u64)> {
    let system = rustix::system::sysinfo();
    let all = (system.totalram as u64).saturating_mul(system.mem_unit.into()) >> 20;
    (limit > all).then_some((limit, all))
}

/// Returns true if the database is new, because its directory is empty.
fn begins(further: &DatabaseSpec) -> bool {
    let directory = further.data.as_ref().map(|data| &data.directory).or(further.name.path.as_ref());
    directory.is_some_and(|directory| todana::begins_at(directory))
}

/// Returns an address to which a client on this machine can connect. "All addresses" becomes a
/// loopback address.
fn connectable(place: &str) -> String {
    let (scheme, address) = place.split_at(place.find("://").map_or(0, |at| at + 3));
    match address.parse::<SocketAddr>() {
        Ok(SocketAddr::V4(all)) if all.ip().is_unspecified() => format!("{scheme}127.0.0.1:{}", all.port()),
        Ok(SocketAddr::V6(all)) if all.ip().is_unspecified() => format!("{scheme}[::1]:{}", all.port()),
        _ => place.to_string(),
    }
}
