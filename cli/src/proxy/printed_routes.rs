//! Prints the routes of a proxy as a part of its configuration file.

use super::printed_options::{key, list, name, quoted, span};
use super::route_table::{READS, SHADOWED, WRITES};
use todana::moment;
use todana_server::{ProxyRoutes, RouteTree};

/// Returns the table `[route]`, or nothing if a file without it has the same routes.
pub(super) fn toml_of(routes: &ProxyRoutes, pools: usize) -> String {
    let is_plain = matches!(routes.default, RouteTree::Pool(_)) && pools == 1;
    if is_plain && routes.prefixes.is_empty() && routes.commands.is_empty() {
        return String::new();
    }
    let mut text = format!("\n[route]\ndefault = {}\n", tree(&routes.default));
    for (prefix, route) in &routes.prefixes {
        // `default` and `commands` are keys of the table itself, and no prefixes.
        text += &format!("{} = {}\n", quoted(prefix), tree(route));
    }
    if !routes.commands.is_empty() {
        text += "\n[route.commands]\n";
    }
    for (command, route) in &routes.commands {
        text += &format!("{} = {}\n", key(command), tree(route));
    }
    text
}

/// Returns a route as TOML writes it. Keys with default values are printed, too.
pub(super) fn tree(route: &RouteTree) -> String {
    let pools = |pools: &[String]| list(&pools.iter().map(|pool| quoted(pool)).collect::<Vec<_>>());
    let on = |on_miss: bool| quoted(if on_miss { "miss" } else { "error" });
    let keys: Vec<(&str, String)> = match route {
        RouteTree::Pool(pool) => return quoted(pool),
        RouteTree::Refuse => return quoted("refuse"),
        RouteTree::Null => return quoted("null"),
        RouteTree::Failover { pools: all, on_miss, ttl } => {
            vec![("failover", pools(all)), ("on", on(*on_miss)), ("ttl", span(*ttl))]
        }
        RouteTree::Replicate { pools: all, copies, read, write, on_miss, repair } => {
            let copies = (*copies > 1).then(|| ("copies", copies.to_string()));
            let keys = [
                ("read", name(&READS, *read)),
                ("write", name(&WRITES, *write)),
                ("on", on(*on_miss)),
                ("repair", repair.to_string()),
            ];
            [("replicate", pools(all))].into_iter().chain(copies).chain(keys).collect()
        }
        RouteTree::WarmUp { new, old, ttl } => {
            let ttl = ttl.map_or_else(|| quoted("keep"), span);
            vec![("warm-up", quoted(new)), ("from", quoted(old)), ("ttl", ttl)]
        }
        RouteTree::Migrate { new, old, start_ms, over } => {
            let start = quoted(&moment::text(*start_ms));
            vec![("migrate", quoted(new)), ("from", quoted(old)), ("start", start), ("over", span(*over))]
        }
        RouteTree::Shadow { pool, share_ppm, requests, with } => {
            let share = format!("{}.{:06}", share_ppm / 1_000_000, share_ppm % 1_000_000);
            let requests = name(&SHADOWED, *requests);
            vec![("shadow", quoted(pool)), ("share", share), ("of", requests), ("with", tree(with))]
        }
        RouteTree::Near { with, ttl, bytes_max, records_max, hot, coalesce, is_shared: _ } => {
            let records = records_max.map(|records| ("records", records.to_string()));
            let keys = [("near", tree(with)), ("ttl", span(*ttl)), ("max", bytes_max.to_string())];
            let more = [("hot", hot.to_string()), ("coalesce", coalesce.to_string())];
            keys.into_iter().chain(records).chain(more).collect()
        }
        RouteTree::Limit { per_second, with } => {
            vec![("limit", per_second.to_string()), ("with", tree(with))]
        }
        RouteTree::Ttl { max, with } => vec![("ttl", span(*max)), ("with", tree(with))],
    };
    let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", keys.join(", "))
}
