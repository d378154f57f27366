//! The variables of `todana serve` for a server under the name `memcached`.
//!
//! Only the variables for settings without an option of memcached have an effect. All others are
//! ignored, so that a variable for another server cannot change a port or the memory limit. `-v`
//! lists the ignored variables.

use super::server_failure::ServerFailure;
use crate::serve::{RecordCompression, SocketInterface};
use clap::ValueEnum;
use todana_server::ServerOptions;

const IO: &str = "TODANA_IO";
const COMPRESS: &str = "TODANA_COMPRESS";

/// The variables that have an effect under this name, and those of the client commands. `admin` and
/// `data_place` read those that are not read here.
const KNOWN: [&str; 8] = [
    IO,
    COMPRESS,
    "TODANA_ADMIN_PORT",
    "TODANA_ADMIN_LISTEN",
    "TODANA_ADMIN_TOKEN_FILE",
    "TODANA_DATA_DIR",
    "TODANA_SYNC",
    "TODANA_SERVER",
];

/// Sets the interface of the system and the compression that the variables select.
pub(super) fn apply(
    options: &mut ServerOptions,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), ServerFailure> {
    if let Some(interface) = chosen::<SocketInterface>(IO, &variable)? {
        options.listen.io = interface.into();
    }
    if let Some(compression) = chosen::<RecordCompression>(COMPRESS, &variable)? {
        options.memory.stores_plain = compression == RecordCompression::Never;
    }
    Ok(())
}

/// Returns the value of a variable, or `None` if it is not set or empty.
fn chosen<V: ValueEnum>(
    name: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<V>, ServerFailure> {
    let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    V::from_str(&text, false).map(Some).map_err(|_| {
        let possible: Vec<String> = V::value_variants()
            .iter()
            .filter_map(V::to_possible_value)
            .map(|value| value.get_name().into())
            .collect();
        ServerFailure::usage(format!("{name} must be one of {}, not \"{text}\"", possible.join(", ")))
    })
}

/// Returns a note for each variable without effect. `names` are the names of all variables of the
/// environment.
pub(super) fn without_effect(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("TODANA_") && !KNOWN.contains(&&**name)).collect();
    names.sort_unstable();
    names
        .iter()
        .map(|name| format!("{name} has no effect; under this name only the command line counts"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_server::IoMode;

    #[test]
    fn only_the_servers_own_variables_are_named() {
        let names = [
            "PATH",
            "TODANA_PORT",
            "TODANA_IO",
            "TODANA_DATA_DIR",
            "TODANA_SERVER",
            "TODANA_MEMORY_LIMIT",
            "TODANA_COMPRESS",
            "TODANA_ADMIN_TOKEN_FILE",
        ];
        let told = without_effect(names.into_iter().map(String::from));
        let named: Vec<_> = told.iter().map(|note| note.split(' ').next().unwrap()).collect();
        assert_eq!(named, ["TODANA_MEMORY_LIMIT", "TODANA_PORT"]);
    }

    /// A wrong value of `TODANA_IO` once meant `auto`.
    #[test]
    fn interface_and_compression_come_from_variables() {
        let applied = |name: &str, value: &str| {
            let mut options = ServerOptions::default();
            let outcome = apply(&mut options, |asked| (asked == name).then(|| value.to_string()));
            outcome
                .map(|()| (options.listen.io, options.memory.stores_plain))
                .map_err(|failure| failure.message)
        };
        for (name, value, expected) in [
            (IO, "", (IoMode::Auto, false)),
            (IO, "auto", (IoMode::Auto, false)),
            (IO, "uring", (IoMode::Uring, false)),
            (IO, "epoll", (IoMode::Epoll, false)),
            (COMPRESS, "", (IoMode::Auto, false)),
            (COMPRESS, "auto", (IoMode::Auto, false)),
            (COMPRESS, "never", (IoMode::Auto, true)),
            ("TODANA_PORT", "7", (IoMode::Auto, false)),
        ] {
            assert_eq!(applied(name, value), Ok(expected), "{name}={value}");
        }
        let refusal = "TODANA_IO must be one of auto, uring, epoll, not \"EPOLL\"";
        assert_eq!(applied(IO, "EPOLL"), Err(refusal.into()));
        let refusal = "TODANA_COMPRESS must be one of auto, never, not \"off\"";
        assert_eq!(applied(COMPRESS, "off"), Err(refusal.into()));
    }
}
