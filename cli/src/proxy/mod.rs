//! `todana proxy`: its configuration, which server holds a key, and how far two rings agree.
//!
//! ```text
//! config_value      a value of a TOML or YAML file with its line
//! table_reader      takes the keys of a table; collects problems
//! proxy_file        our own file: listeners, pools
//! pool_servers      the servers of a pool of this file;  route_table: its routes
//! nutcracker_file   twemproxy's file
//! discovery         asks a server for the servers of a pool
//! config_file       loads a file of either kind
//! printed_options   prints a file;  printed_routes: its routes
//! effective_options the options of command line, environment and file together
//! proxy_program     runs the proxy;  live_configuration: reads its configuration again
//! replacement_program runs it under the name of another proxy
//! reload            lets a running proxy read its configuration again
//! ```

mod config_file;
mod config_value;
mod discovery;
mod effective_options;
mod live_configuration;
mod nutcracker_file;
mod pool_servers;
mod printed_options;
mod printed_routes;
mod proxy_file;
mod proxy_program;
mod reload;
mod replacement_program;
mod route_table;
mod table_reader;

use crate::serve::{NetworkArguments, PROCESS, ProcessArguments, mebibytes, number};
use crate::{CommandFailure, serving};
use clap::Args;
use clap::builder::PossibleValuesParser;
use config_file::ProxyFileKind;
use effective_options::EffectiveOptions;
use proxy_program::ProxyProgram;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use todana_client::ring::{KeyHash, Ring, RingError, RingKind, RingOptions, ServerEntry, VbucketMap};
use todana_server::{PoolOptions, ProxyOptions, check_proxy, init_logging_with_notices};

pub(crate) use config_file::text_of;
pub(crate) use replacement_program::{ReplacementProgram, ReplacementSettings};

pub(crate) const AFTER_HELP: &str = "\
A server is HOST[:PORT], [V6]:PORT or unix:/PATH, and then words: weight=N,
name=X (hashed instead of the address), zone=Z.

Hashes of libmemcached's and twemproxy's rings: one_at_a_time md5 crc16 crc32
crc32a fnv1_64 fnv1a_64 fnv1_32 fnv1a_32 hsieh murmur jenkins.
Hashes of mcrouter's ring: Ch3 Crc32 Rendezvous.

The options of `Network`, `TLS` and `Process` are those of `todana serve`, but
`--io auto` is epoll. Each can also be an environment variable, or a line at the
top of the --config file.
Precedence: command line, environment, config file, default.

`todana proxy reload [SERVER]` lets a running proxy read its configuration again,
and says whether it uses it.

Examples:
  todana proxy --servers cache1,cache2,cache3 -p 11311
  todana proxy --where user:17 --servers cache1,cache2,cache3
  todana proxy --where user:17 --servers 'cache1,cache2 weight=2' --ring twemproxy
  todana proxy --compare todana --servers cache1,cache2,cache3 --ring twemproxy
  todana proxy --where user:17 --config proxy.toml
  todana proxy --from nutcracker.yml --print > proxy.toml";

/// The requests of one client in a turn. The proxy only passes them on, and sends those of a turn
/// in one write to each server, so it takes more of them than a server.
pub(crate) const REQUESTS_PER_EVENT: &str = "1000";

/// The name of the pool that the options describe.
const POOL: &str = "main";

/// The number of keys that `--compare` tries.
const COMPARED_KEYS: u32 = 100_000;

/// The options that describe a pool, which a file does, too.
const POOL_OPTIONS: [&str; 12] = [
    "servers",
    "ring",
    "hash",
    "mode",
    "points",
    "seed",
    "salt",
    "hash_tag",
    "hash_stop",
    "hash_without",
    "vbuckets",
    "compare",
];

/// The arguments of `todana proxy`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProxyArguments {
    /// The servers, with commas between them; may be repeated
    #[arg(long, env = "TODANA_SERVERS", value_name = "LIST")]
    servers: Vec<String>,
    /// Read the listeners, pools, routes and further options from this TOML file
    #[arg(long, env = "TODANA_CONFIG", value_name = "FILE", conflicts_with_all = POOL_OPTIONS)]
    config: Option<PathBuf>,
    /// Read the pools from twemproxy's file, nutcracker.yml
    #[arg(long, value_name = "FILE", conflicts_with_all = POOL_OPTIONS, conflicts_with = "config")]
    from: Option<PathBuf>,
    /// Print the configuration as a file for --config
    #[arg(long, conflicts_with_all = ["key", "compare"])]
    print: bool,
    /// The ring
    #[arg(long, env = "TODANA_RING", value_name = "NAME", default_value = "libmemcached", value_parser = ring_names())]
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
    #[command(flatten)]
    network: NetworkArguments,
    /// Limit of the memory of all buffers and near caches in MiB, or with m, g or t after the
    /// number; 0 for no limit
    #[arg(short, long, env = "TODANA_MEMORY_LIMIT", default_value = "64", value_parser = mebibytes, value_name = "MIB", help_heading = PROCESS)]
    memory_limit: u64,
    /// Number of worker threads [default: one for each processor]
    #[arg(short, long, env = "TODANA_THREADS", value_parser = number::<usize>, help_heading = PROCESS)]
    threads: Option<usize>,
    #[command(flatten)]
    process: ProcessArguments,
}

fn ring_names() -> PossibleValuesParser {
    PossibleValuesParser::new(RingKind::ALL.map(|(name, _)| name))
}

/// Serves, or prints the answer to `--where`, `--compare` or `--print`.
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), CommandFailure> {
    let words: Vec<OsString> = words.into_iter().collect();
    if words.get(2).is_some_and(|word| word == "reload") {
        return reload::run(words.into_iter().skip(2));
    }
    let effective = EffectiveOptions::read(words.clone())?;
    let arguments = &effective.arguments;
    let answer = match (&arguments.key, &arguments.compare) {
        (None, None) if arguments.print => {
            printed_options::toml_of(&effective.proxy_options()?, &effective.shared)
        }
        (None, None) => {
            let options = discovery::with_servers(effective.server_options()?)?;
            init_logging_with_notices(effective.log_format(), options.observation.verbosity);
            let source =
                move || discovery::with_servers(EffectiveOptions::read(words.clone())?.server_options()?);
            return serving::serve(&mut ProxyProgram::new(options, Box::new(source)));
        }
        (Some(key), _) => {
            place_of(key, &discovery::with_pools(effective.proxy_options()?)?).map_err(wrong)?
        }
        (None, Some(other)) => agreement(other, &arguments.pool()?).map_err(wrong)?,
    };
    io::stdout().write_all(answer.as_bytes())?;
    Ok(())
}

/// Checks the file of a proxy. Returns false if the file is not one.
pub(crate) fn check(path: &Path) -> Result<bool, CommandFailure> {
    let Some(file) = config_file::load_if_of_proxy(path)? else { return Ok(false) };
    let options = EffectiveOptions::of_file(file)?.server_options()?;
    // The files that it names may exist on another machine only.
    if let Some(Err(error)) = options.proxy.as_ref().map(check_proxy) {
        eprintln!("todana: {}: the proxy does not start on this machine: {error}", path.display());
    }
    Ok(true)
}

/// Reads the file of twemproxy. The failure lists all its problems.
pub(crate) fn nutcracker_options(path: &Path) -> Result<ProxyOptions, CommandFailure> {
    config_file::load(path, ProxyFileKind::Nutcracker).map(|file| file.options)
}

fn wrong(error: RingError) -> CommandFailure {
    CommandFailure::usage(error.to_string())
}

/// Returns the places of a key in each pool that its route names, and in each pool that has
/// listeners of its own.
fn place_of(key: &str, options: &ProxyOptions) -> Result<String, RingError> {
    let mut text = String::new();
    let mut names: Vec<&str> = Vec::new();
    if let Some(routes) = &options.routes {
        if let Some((prefix, _)) = routes.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix)) {
            text += &format!("route   {prefix}\n");
        }
        names = routes.tree_of("get", key.as_bytes()).pools();
        if names.is_empty() {
            text += "pool    none\n";
        }
    }
    names.extend(options.listeners.iter().filter_map(|listener| listener.pool.as_deref()));
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            continue;
        }
        if index > 0 {
            text.push('\n');
        }
        text += &place_in_pool(key, name, &options.pools[*name])?;
    }
    Ok(text)
}

fn place_in_pool(key: &str, name: &str, pool: &PoolOptions) -> Result<String, RingError> {
    if let Some(vbuckets) = &pool.vbuckets {
        return Ok(place_in_vbuckets(key, name, &vbuckets.map, &pool.servers));
    }
    let (servers, options) = (&pool.servers, pool.ring_options()?);
    let ring = Ring::new(&options, servers, |_| true)?;
    if options.kind == RingKind::Random && servers.len() > 1 {
        return Ok(format!("pool    {name}\nserver  another one for each request\n"));
    }
    let place = ring.place_of(key.as_bytes());
    let number = |number: Option<u64>| number.map_or("none".to_string(), |number| number.to_string());
    let mut ranked = Vec::new();
    ring.rank(key.as_bytes(), servers.len(), &mut ranked);
    let next: Vec<String> = ranked.iter().skip(1).take(3).map(|index| servers[*index].label()).collect();
    let mut lines = place_lines(name, &servers[place.server]);
    let hashed = ring.hashed_part(key.as_bytes());
    if hashed != key.as_bytes() {
        lines += &format!("hashed  {}\n", String::from_utf8_lossy(hashed));
    }
    lines += &format!("hash    {}\npoint   {}\n", number(place.hash), number(place.point));
    if !next.is_empty() {
        lines += &format!("next    {}\n", next.join(", "));
    }
    Ok(lines)
}

fn place_in_vbuckets(key: &str, name: &str, map: &VbucketMap, servers: &[ServerEntry]) -> String {
    let slot = map.slot_of(key.as_bytes());
    let server = place_lines(name, &servers[map.server_of_slot(slot)]);
    format!("{server}hash    {}\nslot    {slot}\n", KeyHash::Crc32.of(key.as_bytes()))
}

fn place_lines(pool: &str, server: &ServerEntry) -> String {
    let address = server.name.as_ref().map_or_else(String::new, |_| format!(" ({})", server.address));
    format!("pool    {pool}\nserver  {}{address}\n", server.label())
}

/// The other ring has the same servers and the same part of keys, and otherwise its defaults.
fn agreement(other: &str, pool: &PoolOptions) -> Result<String, RingError> {
    let other: RingKind = other.parse()?;
    let other = PoolOptions { ring: RingOptions { kind: other, ..RingOptions::default() }, ..pool.clone() };
    let ring_of = |pool: &PoolOptions| {
        if proxy_file::ignores_weights(pool) {
            eprintln!("todana: ring {}: ignores weights", pool.ring.kind);
        }
        Ring::new(&pool.ring_options()?, &pool.servers, |_| true)
    };
    let (ring, other_ring) = (ring_of(pool)?, ring_of(&other)?);
    let keys = (0..COMPARED_KEYS).map(|number| format!("key:{number}"));
    let agreed =
        keys.filter(|key| ring.server_of(key.as_bytes()) == other_ring.server_of(key.as_bytes())).count();
    let percentage = agreed as f64 * 100.0 / f64::from(COMPARED_KEYS);
    Ok(format!(
        "{} and {} agree on {percentage:.1} % of {COMPARED_KEYS} keys\n",
        pool.ring.kind, other.ring.kind
    ))
}
