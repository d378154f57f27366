//! Parses the name of a database on a cluster.
//!
//! ```text
//! cassandra://HOST[:PORT],HOST[:PORT]/KEYSPACE[#strict][#WORD=VALUE]...
//! ```

use super::name::size;

/// The port of Cassandra's protocol.
const CQL_PORT: u16 = 9042;
const SCHEME: &str = "cassandra://";
/// The words after `#`, for suggestions.
pub(super) const CLUSTER_WORDS: [&str; 8] =
    ["strict", "ordered", "cache", "ttl", "dc", "replication", "inflight", "login"];

/// The parsed name of a database on a cluster of Apache Cassandra or ScyllaDB.
///
/// ```
/// use todana::DatabaseName;
///
/// let name = "cassandra://10.0.0.1,10.0.0.2:9142/carts#strict#cache=64m#ttl=5";
/// let cluster = DatabaseName::parse(name)?.cluster.unwrap();
/// assert_eq!(cluster.hosts, ["10.0.0.1:9042", "10.0.0.2:9142"]);
/// assert_eq!((cluster.keyspace.as_str(), cluster.is_strict), ("carts", true));
/// assert_eq!((cluster.cache_bytes, cluster.cache_ttl_s), (Some(64 << 20), 5));
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterName {
    /// The hosts that are asked first, each with its port.
    pub hosts: Vec<String>,
    /// The keyspace of the tables.
    pub keyspace: String,
    /// True if every write passes through Paxos (`strict`).
    pub is_strict: bool,
    /// The number of buckets of an ordered database (`ordered`); `None` if it is unordered.
    pub buckets: Option<u16>,
    /// The memory of the near cache (`cache`); `None` if there is none.
    pub cache_bytes: Option<u64>,
    /// The time in seconds for which the near cache keeps a record (`ttl`).
    pub cache_ttl_s: u32,
    /// The data centre whose nodes execute the requests (`dc`).
    pub datacenter: Option<String>,
    /// The number of copies in each data centre with which the keyspace is created if it is missing
    /// (`replication`).
    pub replication: Option<u8>,
    /// The most operations that are executed on the cluster at the same time (`inflight`). Sixteen
    /// times as many may wait.
    pub in_flight_max: u32,
    /// The file with the name and the password for the cluster, separated by a colon (`login`).
    pub login_file: Option<String>,
}

impl ClusterName {
    /// Returns true if the name is that of a database on a cluster.
    pub(super) fn is_meant_by(database: &str) -> bool {
        database.starts_with(SCHEME)
    }

    /// Parses the part of the name before the words.
    pub(super) fn parse(database: &str) -> Result<ClusterName, String> {
        let form = || "must have the form cassandra://HOST[:PORT],HOST[:PORT]/KEYSPACE".to_owned();
        let rest = database.strip_prefix(SCHEME).ok_or_else(form)?;
        let (hosts, keyspace) = rest.split_once('/').ok_or_else(form)?;
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let is_keyspace = keyspace.len() <= 48
            && keyspace.starts_with(|first: char| first.is_ascii_lowercase())
            && keyspace.bytes().all(is_plain);
        if !is_keyspace {
            return Err(format!(
                "keyspace \"{keyspace}\": must have 1 to 48 small letters, digits and underscores, and begin with a letter"
            ));
        }
        let hosts = hosts.split(',').map(with_port).collect::<Option<Vec<String>>>().ok_or_else(form)?;
        Ok(ClusterName {
            hosts,
            keyspace: keyspace.into(),
            is_strict: false,
            buckets: None,
            cache_bytes: None,
            cache_ttl_s: 5,
            datacenter: None,
            replication: None,
            in_flight_max: 1024,
            login_file: None,
        })
    }

    /// Applies a word. Returns the problem if it cannot be applied.
    pub(super) fn tune(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
        let number = |least: u64, most: u64| {
            let wrong = || format!("{key}: must be a number from {least} to {most}");
            value.and_then(size).filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
        };
        let text = || {
            value.filter(|text| !text.is_empty()).map(str::to_owned).ok_or(format!("{key}: needs a value"))
        };
        match key {
            "strict" if value.is_none() => self.is_strict = true,
            "strict" => return Err("strict: has no value".into()),
            "ordered" => self.buckets = Some(number(1, 4096)? as u16),
            "cache" => self.cache_bytes = Some(number(1 << 20, 1 << 40)?),
            "ttl" => self.cache_ttl_s = number(1, 3600)? as u32,
            "dc" => self.datacenter = Some(text()?),
            "replication" => self.replication = Some(number(1, 99)? as u8),
            "inflight" => self.in_flight_max = number(1, 30_000)? as u32,
            "login" => self.login_file = Some(text()?),
            _ => {
                let near = super::tuning_words::nearest(key, CLUSTER_WORDS.into_iter());
                let hint = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
                return Err(format!("{key}: unknown word{hint}"));
            }
        }
        Ok(())
    }
}

/// Returns the host with its port; `None` if it is not a host.
fn with_port(host: &str) -> Option<String> {
    let is_host = |host: &str| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    if let Some(end) = host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        let (address, port) = host.split_at(end + 2);
        address[1..=end].parse::<std::net::Ipv6Addr>().ok()?;
        return match port.strip_prefix(':') {
            Some(port) => port.parse::<u16>().ok().map(|_| host.to_owned()),
            None => port.is_empty().then(|| format!("{address}:{CQL_PORT}")),
        };
    }
    match host.split_once(':') {
        Some((name, port)) => {
            (is_host(name) && port.parse::<u16>().is_ok_and(|port| port > 0)).then(|| host.to_owned())
        }
        None => is_host(host).then(|| format!("{host}:{CQL_PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use crate::{DatabaseKind, DatabaseName};

    #[test]
    fn name_of_cluster_has_hosts_keyspace_words() {
        let text = "carts=cassandra://db1,db2:9043,[::1]/shop#strict#ordered=16#dc=north#replication=3#inflight=64#login=./cql";
        let name = DatabaseName::parse(text).unwrap();
        assert_eq!((name.alias.as_deref(), name.kind), (Some("carts"), DatabaseKind::Cluster));
        let cluster = name.cluster.unwrap();
        assert_eq!(cluster.hosts, ["db1:9042", "db2:9043", "[::1]:9042"]);
        assert_eq!((cluster.keyspace.as_str(), cluster.is_strict, cluster.buckets), ("shop", true, Some(16)));
        assert_eq!((cluster.datacenter.as_deref(), cluster.replication), (Some("north"), Some(3)));
        assert_eq!((cluster.in_flight_max, cluster.login_file.as_deref()), (64, Some("./cql")));
    }

    #[test]
    fn wrong_name_of_cluster_is_refused() {
        for (name, told) in [
            ("cassandra://", "must have the form"),
            ("cassandra://host", "must have the form"),
            ("cassandra:///keys", "must have the form"),
            ("cassandra://a:0/keys", "must have the form"),
            ("cassandra://a:b/keys", "must have the form"),
            ("cassandra://a/", "keyspace \"\": must have"),
            ("cassandra://a/Keys", "keyspace \"Keys\": must have"),
            ("cassandra://a/k; DROP", "keyspace \"k; DROP\": must have"),
            ("cassandra://a/k#strict=1", "strict: has no value"),
            ("cassandra://a/k#stict", "stict: unknown word; did you mean strict?"),
            ("cassandra://a/k#ordered=0", "ordered: must be a number from 1 to 4096"),
            ("cassandra://a/k#capcnt=5", "capcnt: unknown word"),
            ("cassandra://a/k#ttl=5", "ttl: needs cache=SIZE"),
        ] {
            for parse in [DatabaseName::parse, DatabaseName::parse_as_original] {
                let error = parse(name).unwrap_err().to_string();
                assert!(error.contains(told), "{name}: {error}");
            }
        }
    }
}
