//! Parses the clusters of `-z`: `LPORT=HOST[:PORT[:WEIGHT]],...;LPORT=...`, or a map of vbuckets in
//! JSON in the place of the list.

use todana_client::Address;
use todana_client::ring::{ServerEntry, VbucketMap};

const DEFAULT_PORT: u16 = 11211;

/// A cluster of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoxiCluster {
    /// The port on which moxi listens for it. `None` means that of the behaviours.
    pub(super) port: Option<u16>,
    pub(super) servers: Vec<ServerEntry>,
    pub(super) vbuckets: Option<VbucketMap>,
}

/// Parses a value of `-z`. `weight` is that of servers without one.
pub(super) fn parse(value: &str, weight: u32) -> Result<Vec<MoxiCluster>, String> {
    let value = value.trim();
    let key = value.split('=').next().unwrap_or_default().trim();
    if key == "url" || value.contains("http://") {
        return Err(format!(
            "{value:?}: REST streams of Couchbase are not supported; list the servers: -z 11211=HOST:PORT,..."
        ));
    }
    let is_stream = ["apikey", "config", "host"].contains(&key);
    if is_stream || (value.contains('@') && !value.contains('{')) {
        return Err(
            "-z: XMPP streams of Couchbase are not supported; list the servers: -z 11211=HOST:PORT,..."
                .into(),
        );
    }
    let clusters: Result<Vec<MoxiCluster>, String> =
        outer_parts(value).into_iter().map(|part| cluster(part, weight)).collect();
    clusters.and_then(|clusters| {
        if clusters.is_empty() { Err("need cluster configuration".into()) } else { Ok(clusters) }
    })
}

/// Divides a text at the semicolons that are not within braces. Empty parts do not count.
fn outer_parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b';' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn cluster(text: &str, weight: u32) -> Result<MoxiCluster, String> {
    let wrong = |problem: &str| format!("-z {text}: {problem}");
    let (port, list) = match text.split_once('=').filter(|(port, _)| !port.contains('{')) {
        None => (None, text),
        Some((port, list)) => {
            let number = port.trim().parse().ok().filter(|port: &u16| *port > 0);
            (Some(number.ok_or_else(|| wrong("the port to listen on must be from 1 to 65535"))?), list.trim())
        }
    };
    if list.starts_with('{') {
        let (map, servers) = VbucketMap::parse(list).map_err(|error| wrong(&error.to_string()))?;
        return Ok(MoxiCluster { port, servers, vbuckets: Some(map) });
    }
    let servers = list.split(',').map(str::trim).filter(|server| !server.is_empty());
    let servers = servers.map(|text| server(text, weight)).collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        return Err(wrong("no servers"));
    }
    Ok(MoxiCluster { port, servers, vbuckets: None })
}

/// Parses `HOST[:PORT[:WEIGHT]]` or `HOST:PORT WEIGHT`.
fn server(text: &str, default_weight: u32) -> Result<ServerEntry, String> {
    let wrong = || format!("-z: server {text:?}: must be HOST[:PORT[:WEIGHT]]");
    let mut parts = text.split([':', ' ']).filter(|part| !part.is_empty());
    let host = parts.next().filter(|host| !host.contains(['/', '='])).ok_or_else(wrong)?;
    let port = parts.next().map_or(Ok(DEFAULT_PORT), str::parse);
    let port = port.ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    let weight: u32 = parts.next().map_or(Ok(default_weight), str::parse).map_err(|_| wrong())?;
    if parts.next().is_some() {
        return Err(wrong());
    }
    // A weight of 0 counts as none, as the default of moxi does.
    Ok(ServerEntry {
        address: Address::Tcp(host.into(), port),
        weight: weight.max(1),
        name: None,
        zone: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each cluster as `PORT=SERVER*WEIGHT,...`.
    fn shown(value: &str) -> String {
        let server = |server: &ServerEntry| format!("{}*{}", server.label(), server.weight);
        let clusters = parse(value, 0).unwrap().into_iter().map(|cluster| {
            let servers: Vec<String> = cluster.servers.iter().map(server).collect();
            format!("{:?}={}", cluster.port.unwrap_or(0), servers.join(","))
        });
        clusters.collect::<Vec<_>>().join(";")
    }

    #[test]
    fn clusters_have_ports_servers_and_weights() {
        for (value, clusters) in [
            ("11211=a", "11211=a:11211*1"),
            ("a:5,b", "0=a:5*1,b:11211*1"),
            ("1=a:5:2,b:6 3;\n 2 = c ;", "1=a:5*2,b:6*3;2=c:11211*1"),
            ("1=\n a:5,\n b:6\n", "1=a:5*1,b:6*1"),
        ] {
            assert_eq!(shown(value), clusters, "{value}");
        }
        let json = r#"7={"hashAlgorithm":"CRC","serverList":["a:1","b:2"],"vBucketMap":[[0],[1]]};8=c"#;
        assert_eq!(shown(json), "7=a:1*1,b:2*1;8=c:11211*1");
        assert!(parse(json, 0).unwrap()[0].vbuckets.is_some());
    }

    #[test]
    fn streams_of_couchbase_are_refused() {
        for value in ["url=http://a:8091/pools/default", "http://a/", "11211=http://a/", "url=a"] {
            assert!(parse(value, 0).unwrap_err().contains("REST streams"), "{value}");
        }
        for value in ["user@host.com:password", "apikey=a@b", "host=h", "config=c"] {
            assert!(parse(value, 0).unwrap_err().contains("XMPP streams"), "{value}");
        }
    }

    #[test]
    fn wrong_clusters_name_their_problem() {
        for (value, problem) in [
            ("", "need cluster configuration"),
            (";", "need cluster configuration"),
            ("x=a", "the port to listen on"),
            ("0=a", "the port to listen on"),
            ("1=", "no servers"),
            ("1=a:x", "server \"a:x\""),
            ("1=a:1:x", "server \"a:1:x\""),
            ("1=a:1:2:3", "server \"a:1:2:3\""),
            ("1={}", "hashAlgorithm must be"),
        ] {
            let said = parse(value, 0).unwrap_err();
            assert!(said.contains(problem), "{value}: {said}");
        }
    }
}
