//! Prints the options of a proxy as a configuration file. Options with default values are left out.
//! Not here: routes (`printed_routes`).

use super::printed_routes;
use super::proxy_file::{PROTOCOLS, VERSIONS, WHEN_DOWN};
use std::fmt::{Display, Write};
use std::time::Duration;
use todana_client::ring::ServerEntry;
use todana_server::{ListenerPlace, ListenerProtocol, PoolOptions, ProxyListener, ProxyOptions};

/// Returns the text of a file that `proxy_file::read` turns into the same options. `shared` are the
/// options that `todana serve` has, too, with their values.
pub(super) fn toml_of(options: &ProxyOptions, shared: &[(String, Vec<String>)]) -> String {
    let mut lines = TomlLines::default();
    lines.add_proxy(options);
    for (name, values) in shared {
        let values: Vec<String> = values.iter().map(|value| plain_or_quoted(value)).collect();
        lines.add(name, if let [value] = &values[..] { value.clone() } else { list(&values) });
    }
    for (name, pool) in &options.pools {
        if !lines.0.is_empty() {
            lines.0.push('\n');
        }
        lines.0 += &format!("[pool.{}]\n", key(name));
        let own = options.listeners.iter().filter(|listener| listener.pool.as_ref() == Some(name));
        let own: Vec<&ProxyListener> = own.collect();
        if let Some(first) = own.first() {
            let places: Vec<String> = own.iter().map(|listener| place(listener)).collect();
            lines.add("listen", if let [place] = &places[..] { place.clone() } else { list(&places) });
            let default = ProxyListener::new(first.place.clone(), None);
            lines.unless(default.backlog, "listen-backlog", first.backlog);
            lines.optional("conn-limit", first.clients_max);
        }
        lines.add_pool(pool);
    }
    if let Some(routes) = &options.routes {
        lines.0 += &printed_routes::toml_of(routes, options.pools.len());
    }
    lines.0
}

/// Returns a key of a table as TOML writes it.
pub(super) fn key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.is_empty() && name.bytes().all(is_bare) { name.into() } else { quoted(name) }
}

fn plain_or_quoted(value: &str) -> String {
    let is_plain = value.parse::<i64>().is_ok_and(|number| number.to_string() == value);
    if is_plain || ["true", "false"].contains(&value) { value.into() } else { quoted(value) }
}

#[derive(Default)]
struct TomlLines(String);

impl TomlLines {
    fn add(&mut self, key: &str, value: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{key} = {value}");
    }

    fn optional(&mut self, key: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }

    fn unless<T: PartialEq + Display>(&mut self, default: T, key: &str, value: T) {
        if value != default {
            self.add(key, value);
        }
    }

    fn add_proxy(&mut self, options: &ProxyOptions) {
        let default = ProxyOptions::default();
        let common = options.listeners.iter().filter(|listener| listener.pool.is_none());
        let common: Vec<String> = common.map(place).collect();
        if !common.is_empty() {
            self.add("listen", list(&common));
        }
        self.optional("threads", options.threads);
        self.optional("zone", options.zone.as_deref().map(quoted));
        self.unless(default.show_servers, "show-servers", options.show_servers);
        self.unless(name(&VERSIONS, default.version), "version", name(&VERSIONS, options.version));
        self.unless(default.hot_keys, "hot-keys", options.hot_keys);
        self.unless(span(default.drain), "drain", span(options.drain));
        self.optional("in-flight", options.in_flight_max);
    }

    fn add_pool(&mut self, pool: &PoolOptions) {
        let default = PoolOptions::default();
        let file = |path: &std::path::Path| quoted(&path.to_string_lossy());
        self.optional("servers-file", pool.servers_file.as_deref().map(file));
        self.optional("discover", pool.discover.as_ref().map(|address| quoted(&address.to_string())));
        let map = pool.vbuckets.as_ref().and_then(|vbuckets| vbuckets.file.as_deref());
        self.optional("vbuckets", map.map(file));
        if pool.servers_file.is_none() && pool.discover.is_none() && map.is_none() {
            self.0 += "servers = [\n";
            for server in &pool.servers {
                self.0 += &format!("  {},\n", quoted(&server_text(server)));
            }
            self.0 += "]\n";
        }
        let text = |text: &Option<String>| text.as_deref().map(quoted);
        self.unless(quoted(&default.ring.kind.to_string()), "ring", quoted(&pool.ring.kind.to_string()));
        self.optional("hash", text(&pool.ring.hash));
        self.optional("mode", text(&pool.ring.mode));
        self.optional("points", pool.ring.points);
        self.optional("seed", text(&pool.ring.seed));
        self.optional("salt", text(&pool.ring.salt));
        self.unless(quoted(""), "hash-tag", quoted(&pool.hash_tag));
        self.unless(quoted(""), "hash-stop", quoted(&pool.hash_stop));
        if !pool.hash_without.is_empty() {
            self.add(
                "hash-without",
                list(&pool.hash_without.iter().map(|text| quoted(text)).collect::<Vec<_>>()),
            );
        }
        self.unless(name(&PROTOCOLS, default.speak), "speak", name(&PROTOCOLS, pool.speak));
        self.unless(span(default.connect_timeout), "connect-timeout", span(pool.connect_timeout));
        let limit = |limit: Option<Duration>| limit.map_or_else(|| quoted("none"), span);
        self.unless(limit(default.reply_timeout), "reply-timeout", limit(pool.reply_timeout));
        self.unless(default.connections, "connections", pool.connections);
        self.unless(default.preconnect, "preconnect", pool.preconnect);
        self.unless(default.failures, "failures", pool.failures);
        self.unless(span(default.retry), "retry", span(pool.retry));
        self.unless(span(default.retry_max), "retry-max", span(pool.retry_max));
        self.unless(default.retries, "retries", pool.retries);
        self.unless(limit(default.ping), "ping", limit(pool.ping));
        self.unless(span(default.dns), "dns", span(pool.dns));
        self.unless(default.eject, "eject", pool.eject);
        self.unless(span(default.stand_in_ttl), "stand-in-ttl", span(pool.stand_in_ttl));
        self.unless(name(&WHEN_DOWN, default.when_down), "when-down", name(&WHEN_DOWN, pool.when_down));
        self.unless(default.queue, "queue", pool.queue);
        self.unless(limit(default.queue_timeout), "queue-timeout", limit(pool.queue_timeout));
        if let Some(tls) = &pool.tls {
            let path =
                |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| quoted(&path.to_string_lossy()));
            let keys = [
                ("ca", path(&tls.ca)),
                ("cert", path(&tls.cert)),
                ("key", path(&tls.key)),
                ("server-name", text(&tls.server_name)),
            ];
            let keys = keys.iter().filter_map(|(key, value)| Some(format!("{key} = {}", value.as_ref()?)));
            self.add("tls", format!("{{ {} }}", keys.collect::<Vec<_>>().join(", ")));
        }
        if let Some(login) = &pool.login {
            let file = quoted(&login.password_file.to_string_lossy());
            self.add("login", format!("{{ user = {}, password-file = {file} }}", quoted(&login.user)));
        }
    }
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

pub(super) fn list(values: &[String]) -> String {
    format!("[{}]", values.join(", "))
}

pub(super) fn name<T: PartialEq>(names: &[(&str, T)], value: T) -> String {
    quoted(names.iter().find(|(_, meaning)| *meaning == value).expect("every value has a name").0)
}

pub(super) fn span(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms % 1000 == 0 => quoted(&format!("{}s", ms / 1000)),
        ms => quoted(&format!("{ms}ms")),
    }
}

fn place(listener: &ProxyListener) -> String {
    let mut text = match &listener.place {
        ListenerPlace::Tcp(address) => address.clone(),
        ListenerPlace::Unix { path, mode } => format!("unix:{} mode={mode:04o}", path.display()),
    };
    let known = ListenerProtocol::ALL.iter().filter(|(_, one)| *one != ListenerProtocol::Memcached);
    if let Some((name, _)) = known.into_iter().find(|(_, protocol)| *protocol == listener.protocol) {
        text += &format!(" protocol={name}");
    }
    quoted(&text)
}

fn server_text(server: &ServerEntry) -> String {
    let mut text = server.address.to_string();
    if server.weight != 1 {
        text += &format!(" weight={}", server.weight);
    }
    for (word, value) in [("name", &server.name), ("zone", &server.zone)] {
        if let Some(value) = value {
            text += &format!(" {word}={value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::config_value::ConfigValue;
    use super::super::proxy_file;
    use super::super::table_reader::ConfigReport;
    use super::*;

    #[test]
    fn printed_file_is_read_back_unchanged() {
        let all = r#"
            listen = ["127.0.0.1:1 protocol=tyrant", "unix:/run/common mode=0770 protocol=kyoto"]
            threads = 3
            zone = "z"
            show-servers = false
            version = "servers"
            hot-keys = 7
            drain = "1s"
            in-flight = 9
            admin-port = 0
            tls-cert = "/c"
            conn-limit-waits = true
            admin-listen = ["127.0.0.1", "::1"]
            [pool."a b"]
            listen = ["127.0.0.1:1", "unix:/run/a mode=0770"]
            listen-backlog = 7
            conn-limit = 8
            servers = ["a", "[::1]:5 weight=2 name=x zone=z", "unix:/run/m"]
            ring = "twemproxy"
            hash = "murmur"
            hash-tag = "\"'"
            hash-stop = "|"
            hash-without = ["a:", "b\\"]
            speak = "binary"
            connect-timeout = "1500ms"
            reply-timeout = "none"
            connections = 3
            preconnect = true
            failures = 9
            retry = "20s"
            retry-max = "1m"
            eject = true
            stand-in-ttl = "1m"
            when-down = "miss"
            queue = 5
            queue-timeout = "200ms"
            retries = 0
            ping = "none"
            dns = "1m"
            tls = { ca = "/ca", cert = "/cert", key = "/key", server-name = "n" }
            login = { user = "u", password-file = "/p" }
            [pool.discovered]
            listen = "[::1]:5"
            discover = "cluster.example.com:11211"
            [pool.jump]
            listen = "[::1]:2"
            servers = ["a"]
            ring = "memcached-proxy-jump"
            seed = "s"
            [pool.ring]
            listen = "*:3"
            servers = ["a"]
            ring = "memcached-proxy-ring"
            mode = "evcache"
            points = 100
            [pool.salted]
            listen = "*:4"
            servers = ["a"]
            ring = "mcrouter"
            salt = "s"
            [route]
            default = "jump"
            "a:" = "refuse"
        "#;
        let read = |text: &str| {
            let report = ConfigReport::default();
            let options = proxy_file::read(ConfigValue::of_toml(text).unwrap(), &report);
            assert_eq!(report.lines(&"f"), (Vec::new(), Vec::new()));
            let shared = options.shared.into_iter().map(|(_, name, values)| (name.to_string(), values));
            (options.options, shared.collect::<Vec<_>>())
        };
        let (options, shared) = read(all);
        let printed = toml_of(&options, &shared);
        assert_eq!(read(&printed), (options, shared), "{printed}");
        // Every key of the file differs from its default, so every key is printed.
        let keys = |text: &str| {
            let mut keys: Vec<String> =
                text.lines().filter_map(|line| Some(line.split_once(" = ")?.0.trim().to_string())).collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&printed), keys(all));
    }
}
