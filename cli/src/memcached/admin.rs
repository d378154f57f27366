//! The admin pages of a server under the name `memcached`.
//!
//! memcached has no options for them, so the variables of `todana serve` enable them. A start
//! script can stay unchanged, and a line in the unit's environment is enough.

use super::server_failure::ServerFailure;
use todana_server::AdminOptions;

const PORT: &str = "TODANA_ADMIN_PORT";
const LISTEN: &str = "TODANA_ADMIN_LISTEN";
const TOKEN_FILE: &str = "TODANA_ADMIN_TOKEN_FILE";

/// Returns the options of the pages, or `None` if no port is given.
pub(super) fn asked(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<AdminOptions>, ServerFailure> {
    let port = match variable(PORT).as_deref().map(str::trim) {
        None | Some("" | "0") => return Ok(None),
        // Port 0 lets the system choose.
        Some("-1") => 0,
        Some(text) => text.parse().map_err(|_| {
            ServerFailure::usage(format!("{PORT} must be 1 to 65535, 0 for none or -1, not \"{text}\""))
        })?,
    };
    let listen = variable(LISTEN).unwrap_or_else(|| "127.0.0.1".into());
    Ok(Some(AdminOptions {
        listen: listen.split(',').map(String::from).collect(),
        port,
        token_file: variable(TOKEN_FILE).map(Into::into),
        may_write: false,
        backups: None,
        is_required: true,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_by(variables: &[(&str, &str)]) -> Result<Option<AdminOptions>, ServerFailure> {
        asked(|name| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn pages_need_a_port() {
        for none in [&[][..], &[(PORT, "0")], &[(PORT, "")], &[(LISTEN, "::1")]] {
            assert!(matches!(asked_by(none), Ok(None)), "{none:?}");
        }
        let pages = |listen: &[&str], port| {
            let listen = listen.iter().map(ToString::to_string).collect();
            AdminOptions { listen, port, is_required: true, ..AdminOptions::default() }
        };
        assert!(matches!(asked_by(&[(PORT, "9150")]), Ok(Some(a)) if a == pages(&["127.0.0.1"], 9150)));
        assert!(
            matches!(asked_by(&[(PORT, "-1"), (LISTEN, "::1,a:7")]), Ok(Some(a)) if a == pages(&["::1", "a:7"], 0))
        );
        for wrong in ["x", "65536", "-2"] {
            assert!(asked_by(&[(PORT, wrong)]).is_err(), "{wrong}");
        }
    }
}
