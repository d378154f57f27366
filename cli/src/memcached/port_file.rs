//! The port file, from which tests and scripts read the ports that the system chose. It has a line
//! `TCP INET: PORT` for each TCP address, then such lines for UDP. Without addresses it is empty.

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// The variable that names the port file.
const VARIABLE: &str = "MEMCACHED_PORT_FILENAME";

/// Writes the ports to a temporary file and renames that file, if the environment names a port
/// file. Errors are only printed.
pub(super) fn write(tcp: &[SocketAddr], udp: &[SocketAddr], trouble: &mut impl io::Write) {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return };
    let mut unfinished = OsString::from(&path);
    unfinished.push(".lck");
    let outcome =
        std::fs::write(&unfinished, lines(tcp, udp)).and_then(|()| std::fs::rename(&unfinished, &path));
    if let Err(error) = outcome {
        let reason = crate::serving::reason(&error);
        // A failure is ignored, because standard error may be closed.
        let _ = writeln!(trouble, "Failed to open \"{}\": {reason}", Path::new(&unfinished).display());
    }
}

fn lines(tcp: &[SocketAddr], udp: &[SocketAddr]) -> String {
    let mut lines = String::new();
    let tcp = tcp.iter().map(|address| ("TCP", address));
    for (transport, address) in tcp.chain(udp.iter().map(|address| ("UDP", address))) {
        let family = if address.is_ipv4() { "INET" } else { "INET6" };
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{transport} {family}: {}", address.port());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_names_transport_family_and_port() {
        let addresses = ["0.0.0.0:1234".parse().unwrap(), "[::]:5678".parse().unwrap()];
        assert_eq!(lines(&addresses, &[]), "TCP INET: 1234\nTCP INET6: 5678\n");
        assert_eq!(lines(&addresses[..1], &addresses[1..]), "TCP INET: 1234\nUDP INET6: 5678\n");
    }
}
