//! `todana proxy`: which server of a list holds a key, and how far two rings agree.
//!
//! Not here yet: the proxy itself. The command therefore requires `--where` or `--compare`, and the
//! list of commands does not show it.

use crate::CommandFailure;
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::io::{self, Write};
use std::path::PathBuf;
use todana_client::ring::{
    KeyFilter, KeyHash, Ring, RingError, RingKind, RingOptions, ServerEntry, VbucketMap,
};

pub(crate) const AFTER_HELP: &str = "\
A server is HOST[:PORT], [V6]:PORT or unix:/PATH, and then words: weight=N,
name=X (hashed instead of the address), zone=Z.

Hashes of libmemcached's and twemproxy's rings: one_at_a_time md5 crc16 crc32
crc32a fnv1_64 fnv1a_64 fnv1_32 fnv1a_32 hsieh murmur jenkins.
Hashes of mcrouter's ring: Ch3 Crc32 Rendezvous.

Examples:
  todana proxy --where user:17 --servers cache1,cache2,cache3
  todana proxy --where user:17 --servers 'cache1,cache2 weight=2' --ring twemproxy
  todana proxy --compare todana --servers cache1,cache2,cache3 --ring twemproxy";

/// The name of the pool that the options describe.
const POOL: &str = "main";

/// The number of keys that `--compare` tries.
const COMPARED_KEYS: u32 = 100_000;

/// The arguments of `todana proxy`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProxyArguments {
    /// The servers, with commas between them
    #[arg(long, value_name = "LIST", required_unless_present = "vbuckets")]
    servers: Option<String>,
    /// The ring
    #[arg(long, value_name = "NAME", default_value = "libmemcached", value_parser = ring_names())]
    ring: String,
    /// The hash of keys [default: that of the ring]
    #[arg(long, value_name = "NAME")]
    hash: Option<String>,
    /// A variant of the ring: default, ketama, twemproxy or evcache for memcached-proxy-ring; spy
    /// for libmemcached
    #[arg(long, value_name = "NAME")]
    mode: Option<String>,
    /// The points of each server, for memcached-proxy-ring [default: 160]
    #[arg(long, value_name = "N")]
    points: Option<u32>,
    /// The seed of memcached-proxy-jump, a number or a text [default: 0]
    #[arg(long)]
    seed: Option<String>,
    /// The text that mcrouter appends to keys
    #[arg(long, value_name = "TEXT")]
    salt: Option<String>,
    /// Hash only the part of a key between these two characters
    #[arg(long, value_name = "CC", default_value = "")]
    hash_tag: String,
    /// Hash only the part of a key before this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    hash_stop: String,
    /// Remove this prefix of keys before they are hashed; may be repeated
    #[arg(long, value_name = "PREFIX")]
    hash_without: Vec<String>,
    /// Use the servers and the vBucketMap of this JSON file instead of a ring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["servers", "compare"])]
    vbuckets: Option<PathBuf>,
    /// Print pool, server, hash and ring point of a key
    #[arg(long = "where", value_name = "KEY")]
    key: Option<String>,
    /// Print the share of 100,000 keys for which --ring and this ring choose the same server
    #[arg(long, value_name = "RING", value_parser = ring_names(), conflicts_with = "key")]
    compare: Option<String>,
}

fn ring_names() -> PossibleValuesParser {
    PossibleValuesParser::new(RingKind::ALL.map(|(name, _)| name))
}

/// Prints the answer to `--where` or `--compare`.
pub(crate) fn run(arguments: &ProxyArguments) -> Result<(), CommandFailure> {
    let answer = match (&arguments.key, &arguments.compare, &arguments.vbuckets) {
        (None, None, _) => {
            return Err(CommandFailure::usage(
                "proxy: cannot serve yet; use --where KEY or --compare RING, which only print",
            ));
        }
        (Some(key), _, Some(path)) => {
            let json = std::fs::read_to_string(path).map_err(|error| CommandFailure::of_file(path, error))?;
            place_in_vbuckets(key, &json)
        }
        (Some(key), ..) => place_in_ring(key, arguments),
        (None, Some(other), _) => agreement(other, arguments),
    };
    io::stdout().write_all(answer.map_err(|error| CommandFailure::usage(error.to_string()))?.as_bytes())?;
    Ok(())
}

impl ProxyArguments {
    fn servers(&self) -> Result<Vec<ServerEntry>, RingError> {
        ServerEntry::parse_list(self.servers.as_deref().unwrap_or_default())
    }

    fn options(&self) -> Result<RingOptions, RingError> {
        Ok(RingOptions {
            kind: self.ring.parse()?,
            key_filter: KeyFilter::new(&self.hash_tag, &self.hash_stop, &self.hash_without)?,
            hash: self.hash.clone(),
            mode: self.mode.clone(),
            points: self.points,
            seed: self.seed.clone(),
            salt: self.salt.clone(),
        })
    }
}

/// Builds a ring over all servers, and prints a note if it ignores their weights.
fn ring_over(servers: &[ServerEntry], options: &RingOptions) -> Result<Ring, RingError> {
    let ring = Ring::new(options, servers, |_| true)?;
    if !options.kind.uses_weights() && servers.iter().any(|server| server.weight > 1) {
        eprintln!("todana: ring {}: ignores weights", options.kind);
    }
    Ok(ring)
}

fn place_in_ring(key: &str, arguments: &ProxyArguments) -> Result<String, RingError> {
    let (servers, options) = (arguments.servers()?, arguments.options()?);
    let ring = ring_over(&servers, &options)?;
    let place = ring.place_of(key.as_bytes());
    let number = |number: Option<u64>| number.map_or("none".to_string(), |number| number.to_string());
    let mut ranked = Vec::new();
    ring.rank(key.as_bytes(), servers.len(), &mut ranked);
    let next: Vec<String> = ranked.iter().skip(1).take(3).map(|index| servers[*index].label()).collect();
    let mut lines = place_lines(&servers[place.server]);
    let hashed = ring.hashed_part(key.as_bytes());
    if hashed != key.as_bytes() {
        lines += &format!("hashed  {}\n", String::from_utf8_lossy(hashed));
    }
    lines += &format!("hash    {}\npoint   {}\n", number(place.hash), number(place.point));
    if !next.is_empty() && options.kind != RingKind::Random {
        lines += &format!("next    {}\n", next.join(", "));
    }
    Ok(lines)
}

fn place_in_vbuckets(key: &str, json: &str) -> Result<String, RingError> {
    let (map, servers) = VbucketMap::parse(json)?;
    let slot = map.slot_of(key.as_bytes());
    let server = place_lines(&servers[map.server_of_slot(slot)]);
    Ok(format!("{server}hash    {}\nslot    {slot}\n", KeyHash::Crc32.of(key.as_bytes())))
}

fn place_lines(server: &ServerEntry) -> String {
    let address = server.name.as_ref().map_or_else(String::new, |_| format!(" ({})", server.address));
    format!("pool    {POOL}\nserver  {}{address}\n", server.label())
}

/// The other ring has the same servers and the same part of keys, and otherwise its defaults.
fn agreement(other: &str, arguments: &ProxyArguments) -> Result<String, RingError> {
    let (servers, options) = (arguments.servers()?, arguments.options()?);
    let kind: RingKind = other.parse()?;
    let key_filter = options.key_filter.clone();
    let other_options = RingOptions { kind, key_filter, ..RingOptions::default() };
    let (ring, other) = (ring_over(&servers, &options)?, ring_over(&servers, &other_options)?);
    let keys = (0..COMPARED_KEYS).map(|number| format!("key:{number}"));
    let agreed = keys.filter(|key| ring.server_of(key.as_bytes()) == other.server_of(key.as_bytes())).count();
    let percentage = agreed as f64 * 100.0 / f64::from(COMPARED_KEYS);
    Ok(format!("{} and {kind} agree on {percentage:.1} % of {COMPARED_KEYS} keys\n", options.kind))
}
