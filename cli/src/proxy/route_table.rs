//! Reads the table `[route]` of the configuration file of a proxy.
//!
//! ```text
//! default = TREE              all other requests; not needed if there is a single pool
//! "session:" = TREE           keys that begin with this text; the longest prefix applies
//! [route.commands]
//! flush_all = TREE            requests that no prefix applies to, by command
//!
//! TREE                        "POOL", "refuse", "null", or a table with one of the keys of KINDS
//! ```

use super::config_value::{ConfigData, ConfigEntry, ConfigValue};
use super::proxy_file::whole_seconds;
use super::table_reader::{
    ConfigReport, TableReader, count, duration, duration_or, elements, flag, number, size, some_text, text,
    word,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use todana::moment;
use todana_server::{ProxyRoutes, ReplicaRead, ReplicaWrite, RouteTree, ShadowedRequests};

/// The keys that select the kind of a route. `ttl` is the last one, because other kinds have a key
/// of this name, too.
const KINDS: [&str; 8] = ["failover", "replicate", "warm-up", "migrate", "shadow", "near", "limit", "ttl"];

/// The time to live of a record that is written to another pool than its own.
const FAILOVER_TTL: Duration = Duration::from_secs(10);

const NEAR_BYTES_MAX: u64 = 8 << 20;

/// The names of `read`.
pub(super) const READS: [(&str, ReplicaRead); 5] = [
    ("first", ReplicaRead::First),
    ("nearest", ReplicaRead::Nearest),
    ("random", ReplicaRead::Random),
    ("fastest", ReplicaRead::Fastest),
    ("majority", ReplicaRead::Majority),
];

/// The names of `write`.
pub(super) const WRITES: [(&str, ReplicaWrite); 4] = [
    ("all", ReplicaWrite::All),
    ("first", ReplicaWrite::First),
    ("majority", ReplicaWrite::Majority),
    ("any", ReplicaWrite::Any),
];

/// The names of `of`.
pub(super) const SHADOWED: [(&str, ShadowedRequests); 3] = [
    ("reads", ShadowedRequests::Reads),
    ("writes", ShadowedRequests::Writes),
    ("all", ShadowedRequests::All),
];

/// The commands that can have a route.
const COMMANDS: [&str; 24] = [
    "add",
    "append",
    "cas",
    "decr",
    "delete",
    "flush_all",
    "gat",
    "gats",
    "get",
    "gets",
    "incr",
    "ma",
    "md",
    "me",
    "mg",
    "mn",
    "ms",
    "prepend",
    "replace",
    "set",
    "stats",
    "touch",
    "verbosity",
    "version",
];

/// Reads the routes. Returns `None` after a problem with the default route.
pub(super) fn read(entry: ConfigEntry, pools: &[&str], report: &ConfigReport) -> Option<ProxyRoutes> {
    let mut table = TableReader::new("route", entry.line, entry.value, report)?;
    let reader = TreeReader { pools, report };
    let default = match (table.take("default"), pools) {
        (Some(entry), _) => reader.tree("route default", entry.line, entry.value),
        (None, [pool]) => Some(RouteTree::Pool(pool.to_string())),
        (None, _) => {
            table.own_problem("default is missing");
            None
        }
    };
    let mut commands = BTreeMap::new();
    if let Some(entry) = table.take("commands")
        && let Some(mut table) = TableReader::new("route commands", entry.line, entry.value, report)
    {
        for command in COMMANDS {
            if let Some(entry) = table.take(command)
                && let Some(tree) = reader.tree(&format!("route {command}"), entry.line, entry.value)
            {
                commands.insert(command.to_string(), tree);
            }
        }
        table.finish();
    }
    let mut prefixes = Vec::new();
    for ConfigEntry { line, key, value } in table.rest() {
        if key.is_empty() {
            table.problem(line, "a prefix is empty; use default");
        }
        if let Some(tree) = reader.tree(&format!("route {key:?}"), line, value) {
            prefixes.push((key, tree));
        }
    }
    prefixes.sort_by_key(|(prefix, _)| Reverse(prefix.len()));
    Some(ProxyRoutes { default: default?, prefixes, commands })
}

struct TreeReader<'r> {
    /// The names of the pools.
    pools: &'r [&'r str],
    report: &'r ConfigReport,
}

impl TreeReader<'_> {
    fn tree(&self, name: &str, line: usize, value: ConfigValue) -> Option<RouteTree> {
        if let ConfigData::Text(word) = &value.data {
            return match word.as_str() {
                "refuse" => Some(RouteTree::Refuse),
                "null" => Some(RouteTree::Null),
                _ => match self.pool(&value) {
                    Ok(pool) => Some(RouteTree::Pool(pool)),
                    Err(problem) => {
                        self.report.problem(line, format!("{name}: {problem}"));
                        None
                    }
                },
            };
        }
        let mut table = TableReader::new(name, line, value, self.report)?;
        let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| table.has(kind)).collect();
        let tree = match kinds.first() {
            Some(kind) => self.kind(kind, name, &mut table),
            None => {
                table.own_problem(format!(
                    "a route must be a pool, \"refuse\", \"null\" or have one of the keys {}",
                    KINDS.join(", ")
                ));
                return None;
            }
        };
        table.finish();
        tree
    }

    /// Reads a route of one kind. All keys are read before the first `?`, so that none of them
    /// counts as unknown after a problem with another.
    fn kind(&self, kind: &str, name: &str, table: &mut TableReader<'_>) -> Option<RouteTree> {
        let causes = [("error", false), ("miss", true)];
        let pool = |value: &ConfigValue| self.pool(value);
        let pools = |value: &ConfigValue| self.some_pools(value);
        Some(match kind {
            "failover" => {
                let pools = table.get("failover", pools);
                let mut tree = (false, FAILOVER_TTL);
                table.set("on", &mut tree.0, word(&causes));
                table.set("ttl", &mut tree.1, whole_seconds);
                RouteTree::Failover { pools: pools?, on_miss: tree.0, ttl: tree.1 }
            }
            "replicate" => self.replicate(table)?,
            "warm-up" => {
                let (new, old) = (table.get("warm-up", pool), table.required("from", pool));
                let ttl = table.get("ttl", ttl_or_keep).flatten();
                self.expect_two(table, &new, &old);
                RouteTree::WarmUp { new: new?, old: old?, ttl }
            }
            "migrate" => {
                let (new, old) = (table.get("migrate", pool), table.required("from", pool));
                let start = table.required("start", |value| moment::parse(&text(value)?));
                let over = table.required("over", duration);
                self.expect_two(table, &new, &old);
                RouteTree::Migrate { new: new?, old: old?, start_ms: start?, over: over? }
            }
            "shadow" => {
                let pool = table.get("shadow", pool);
                let share = table.required("share", share_ppm);
                let requests = table.get("of", word(&SHADOWED)).unwrap_or(ShadowedRequests::All);
                let with = self.nested("with", name, table);
                RouteTree::Shadow { pool: pool?, share_ppm: share?, requests, with: with? }
            }
            "near" => {
                let with = self.nested("near", name, table);
                let ttl = table.required("ttl", duration);
                let bytes_max = table.get("max", size).unwrap_or(NEAR_BYTES_MAX);
                let records_max = table.get("records", count(u32::MAX));
                let hot = table.get("hot", flag).unwrap_or(false);
                let coalesce = table.get("coalesce", flag).unwrap_or(false);
                let is_shared = false;
                RouteTree::Near { with: with?, ttl: ttl?, bytes_max, records_max, hot, coalesce, is_shared }
            }
            "limit" => {
                let per_second = table.get("limit", count(u32::MAX));
                let with = self.nested("with", name, table);
                RouteTree::Limit { per_second: per_second?, with: with? }
            }
            _ => {
                let max = table.get("ttl", whole_seconds);
                let with = self.nested("with", name, table);
                RouteTree::Ttl { max: max?, with: with? }
            }
        })
    }

    fn replicate(&self, table: &mut TableReader<'_>) -> Option<RouteTree> {
        let pools = table.get("replicate", |value| self.some_pools(value));
        let copies = table.get("copies", number(2, 64));
        let read = table.get("read", word(&READS)).unwrap_or(ReplicaRead::First);
        let write = table.get("write", word(&WRITES)).unwrap_or(ReplicaWrite::All);
        // A miss of the first copy is no answer, unless the copies are those of other zones.
        let causes = [("error", false), ("miss", true)];
        let on_miss = table.get("on", word(&causes)).unwrap_or(read != ReplicaRead::Nearest);
        let repair = table.get("repair", flag).unwrap_or(true);
        match (pools.as_ref()?.len(), copies) {
            (1, None) => table.own_problem("one pool needs copies = 2 or more"),
            (2.., Some(_)) => table.own_problem("copies is for a single pool"),
            _ => {}
        }
        let copies = usize::try_from(copies.unwrap_or(1)).ok()?;
        Some(RouteTree::Replicate { pools: pools?, copies, read, write, on_miss, repair })
    }

    /// Reads the route under a key of another route.
    fn nested(&self, key: &'static str, name: &str, table: &mut TableReader<'_>) -> Option<Box<RouteTree>> {
        match table.take(key) {
            Some(entry) => self.tree(name, entry.line, entry.value).map(Box::new),
            None => {
                table.own_problem(format!("{key} is missing"));
                None
            }
        }
    }

    fn pool(&self, value: &ConfigValue) -> Result<String, String> {
        let name = some_text(value).map_err(|_| "must be the name of a pool".to_string())?;
        if self.pools.contains(&name.as_str()) {
            return Ok(name);
        }
        Err(format!("no pool {name:?}; pools: {}", self.pools.join(", ")))
    }

    fn some_pools(&self, value: &ConfigValue) -> Result<Vec<String>, String> {
        let pools: Vec<String> =
            elements(value).iter().map(|pool| self.pool(pool)).collect::<Result<_, _>>()?;
        let repeated = (1..pools.len()).find(|index| pools[..*index].contains(&pools[*index]));
        match repeated {
            Some(index) => Err(format!("pool {:?} occurs twice", pools[index])),
            None if pools.is_empty() => Err("must have a pool".into()),
            None => Ok(pools),
        }
    }

    fn expect_two(&self, table: &TableReader<'_>, new: &Option<String>, old: &Option<String>) {
        if new.is_some() && new == old {
            table.own_problem("from must be another pool");
        }
    }
}

fn ttl_or_keep(value: &ConfigValue) -> Result<Option<Duration>, String> {
    match duration_or("keep")(value)? {
        None => Ok(None),
        Some(_) => whole_seconds(value).map(Some),
    }
}

/// Parses a share above 0 up to 1, and returns it in millionths.
fn share_ppm(value: &ConfigValue) -> Result<u32, String> {
    let text = text(value)?;
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    let share = share.ok_or_else(|| format!("must be a share above 0 up to 1, as 0.05, not {text:?}"))?;
    Ok(((share * 1e6).round() as u32).max(1))
}

#[cfg(test)]
mod tests {
    use super::super::printed_routes;
    use super::*;

    fn tree_of(text: &str) -> RouteTree {
        let report = ConfigReport::default();
        let ConfigData::Table(mut file) = ConfigValue::of_toml(&format!("x = {text}")).unwrap().data else {
            panic!("a file is a table");
        };
        let reader = TreeReader { pools: &["a", "b"], report: &report };
        let tree = reader.tree("x", 1, file.remove(0).value);
        assert_eq!(report.lines(&"f"), (Vec::new(), Vec::new()), "{text}");
        tree.unwrap()
    }

    /// Returns the tree that is read from the printed form of a tree.
    fn printed_and_read(tree: &RouteTree) -> RouteTree {
        tree_of(&printed_routes::tree(tree))
    }

    #[test]
    fn each_kind_of_route_is_read() {
        let (a, b) = (|| "a".to_string(), || "b".to_string());
        let pool = || Box::new(RouteTree::Pool(a()));
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let failover = |on_miss, ttl| RouteTree::Failover {
            pools: vec![a(), b()],
            on_miss,
            ttl: Duration::from_secs(ttl),
        };
        let near = |bytes_max, records_max, hot, coalesce| {
            let ttl = Duration::from_millis(500);
            let is_shared = false;
            RouteTree::Near { with: pool(), ttl, bytes_max, records_max, hot, coalesce, is_shared }
        };
        let shadow = |share_ppm, requests| RouteTree::Shadow { pool: b(), share_ppm, requests, with: pool() };
        let nearest = RouteTree::Replicate {
            pools: vec![a(), b()],
            copies: 1,
            read: ReplicaRead::Nearest,
            write: ReplicaWrite::Majority,
            on_miss: false,
            repair: false,
        };
        let copies = RouteTree::Replicate {
            pools: vec![a()],
            copies: 3,
            read: ReplicaRead::First,
            write: ReplicaWrite::All,
            on_miss: true,
            repair: true,
        };
        for (text, tree) in [
            (r#""a""#, *pool()),
            (r#""refuse""#, RouteTree::Refuse),
            (r#""null""#, RouteTree::Null),
            (r#"{ failover = ["a", "b"] }"#, failover(false, 10)),
            (r#"{ failover = ["a", "b"], on = "miss", ttl = "1m" }"#, failover(true, 60)),
            (r#"{ replicate = ["a", "b"], read = "nearest", write = "majority", repair = false }"#, nearest),
            (r#"{ replicate = "a", copies = 3 }"#, copies),
            (r#"{ warm-up = "b", from = "a" }"#, RouteTree::WarmUp { new: b(), old: a(), ttl: None }),
            (
                r#"{ warm-up = "b", from = "a", ttl = "1h" }"#,
                RouteTree::WarmUp { new: b(), old: a(), ttl: Some(hour) },
            ),
            (
                r#"{ migrate = "b", from = "a", start = 2026-12-01T00:00:00Z, over = "1h" }"#,
                RouteTree::Migrate { new: b(), old: a(), start_ms: 1_796_083_200_000, over: hour },
            ),
            (r#"{ shadow = "b", share = 0.05, with = "a" }"#, shadow(50_000, ShadowedRequests::All)),
            (
                r#"{ shadow = "b", share = 1, of = "reads", with = "a" }"#,
                shadow(1_000_000, ShadowedRequests::Reads),
            ),
            (r#"{ near = "a", ttl = "500ms" }"#, near(8 << 20, None, false, false)),
            (
                r#"{ near = "a", ttl = "500ms", max = "1k", records = 9, hot = true, coalesce = true }"#,
                near(1024, Some(9), true, true),
            ),
            (
                r#"{ limit = 1000, with = { ttl = "1s", with = "a" } }"#,
                RouteTree::Limit {
                    per_second: 1000,
                    with: Box::new(RouteTree::Ttl { max: second, with: pool() }),
                },
            ),
        ] {
            assert_eq!(tree_of(text), tree, "{text}");
            assert_eq!(printed_and_read(&tree), tree, "{text}");
        }
    }

    #[test]
    fn longest_prefix_comes_first() {
        let text = "x = { \"a\" = \"null\", \"a:b\" = \"refuse\", \"a:\" = \"p\" }";
        let ConfigData::Table(mut file) = ConfigValue::of_toml(text).unwrap().data else {
            panic!("a file is a table");
        };
        let routes = read(file.remove(0), &["p"], &ConfigReport::default()).unwrap();
        let prefixes: Vec<&str> = routes.prefixes.iter().map(|(prefix, _)| prefix.as_str()).collect();
        assert_eq!(prefixes, ["a:b", "a:", "a"]);
        assert_eq!(routes.default, RouteTree::Pool("p".into()));
    }
}
