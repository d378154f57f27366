//! Parses a master that speaks Todana's own protocol:
//! `todana://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, or `todanas://` for TLS.

use super::{REPLICATION, ServeArguments};
use clap::Args;
use std::path::PathBuf;
use todana_client::{Address, LoginDestination};
use todana_server::{MasterAddress, NativeReplicaOptions, PoolLogin, PoolTlsOptions};

/// The options of a replica in Todana's own protocol.
#[derive(Clone, Debug, Args)]
pub(crate) struct NativeReplicationArguments {
    /// Accept changes of clients although the server follows a todana:// master, for two servers
    /// that follow each other; by default, such a replica refuses them
    #[arg(long, env = "TODANA_REPLICA_WRITES", help_heading = REPLICATION)]
    replica_writes: bool,
    /// Log in at the todana:// master as this user [default: the user in
    /// todana://USER:PASSWORD@HOST:PORT]
    #[arg(long, env = "TODANA_REPLICA_USER", value_name = "NAME", help_heading = REPLICATION)]
    replica_user: Option<String>,
    /// Read the password for the master from the first line of this file
    #[arg(long, env = "TODANA_REPLICA_PASSWORD_FILE", value_name = "FILE", help_heading = REPLICATION)]
    replica_password_file: Option<PathBuf>,
    /// PEM file of the authorities that may sign the certificate of a todanas:// master, or of its
    /// own certificate [default: the authorities that the system trusts]
    #[arg(long, env = "TODANA_REPLICA_TLS_CA", value_name = "FILE", help_heading = REPLICATION)]
    replica_tls_ca: Option<PathBuf>,
    /// PEM file of the client certificate, for a master that requires one
    #[arg(long, env = "TODANA_REPLICA_TLS_CERT", value_name = "FILE", help_heading = REPLICATION)]
    replica_tls_cert: Option<PathBuf>,
    /// PEM file of the private key for --replica-tls-cert, if that file does not contain the key
    #[arg(long, env = "TODANA_REPLICA_TLS_KEY", value_name = "FILE", help_heading = REPLICATION, requires = "replica_tls_cert")]
    replica_tls_key: Option<PathBuf>,
}

/// A master of Todana's own protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NativeMaster {
    destination: LoginDestination,
    has_tls: bool,
    database: Option<u16>,
}

impl NativeMaster {
    /// Parses a text. Returns `None` if it has another prefix.
    pub(super) fn parse(text: &str) -> Option<Result<(MasterAddress, NativeMaster), String>> {
        let has_scheme = text.starts_with("todana://") || text.starts_with("todanas://");
        has_scheme.then(|| parse(text))
    }
}

fn parse(text: &str) -> Result<(MasterAddress, NativeMaster), String> {
    const USAGE: &str = "must be todana://HOST:PORT, todana://HOST:PORT/NUMBER or todanas://HOST:PORT";
    let after_scheme = text.find("://").map_or(0, |at| at + 3);
    let (place, database) = match text[after_scheme..].rfind('/') {
        Some(at) => {
            let (place, number) = text.split_at(after_scheme + at);
            (place, Some(number[1..].parse().map_err(|_| USAGE)?))
        }
        None => (text, None),
    };
    let destination: LoginDestination = place.parse().map_err(|_| USAGE)?;
    let (host, port, has_tls) = match &destination.address {
        Address::Tcp(host, port) => (host.clone(), *port, false),
        Address::Tls(host, port) => (host.clone(), *port, true),
        Address::Unix(_) => return Err(USAGE.into()),
    };
    if port == 0 {
        return Err(USAGE.into());
    }
    Ok((MasterAddress { host, port }, NativeMaster { destination, has_tls, database }))
}

impl ServeArguments {
    /// Returns the options of a replica in Todana's own protocol. The error names the wrong option.
    pub(super) fn native_replica(
        &self,
        master: Option<&NativeMaster>,
    ) -> Result<NativeReplicaOptions, String> {
        let arguments = &self.native_replication;
        let Some(master) = master else {
            let given = [
                ("--replica-writes", arguments.replica_writes),
                ("--replica-user", arguments.replica_user.is_some()),
                ("--replica-password-file", arguments.replica_password_file.is_some()),
                ("--replica-tls-ca", arguments.replica_tls_ca.is_some()),
                ("--replica-tls-cert", arguments.replica_tls_cert.is_some()),
            ];
            return match given.iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => Err(format!("{name}: needs --replicate todana://HOST:PORT")),
                None => Ok(NativeReplicaOptions::default()),
            };
        };
        let (ca, cert) = (arguments.replica_tls_ca.clone(), arguments.replica_tls_cert.clone());
        if !master.has_tls && (ca.is_some() || cert.is_some()) {
            return Err(
                "--replica-tls-ca and --replica-tls-cert: need --replicate todanas://HOST:PORT".into()
            );
        }
        let tls = PoolTlsOptions { ca, cert, key: arguments.replica_tls_key.clone(), server_name: None };
        let user = arguments.replica_user.clone().or_else(|| master.destination.user.clone());
        let file = arguments.replica_password_file.clone();
        let password = master.destination.password.clone().filter(|_| file.is_none());
        let login = match (user, file, password) {
            (None, None, _) => None,
            (None, Some(_), _) => {
                return Err("--replica-password-file: needs a user; add --replica-user".into());
            }
            (Some(user), None, None) => {
                return Err(format!("{user}: no password given; use --replica-password-file FILE"));
            }
            (Some(user), file, password) => {
                Some(PoolLogin { user, password_file: file.unwrap_or_default(), password })
            }
        };
        Ok(NativeReplicaOptions {
            accepts_writes: arguments.replica_writes,
            tls: master.has_tls.then_some(tls),
            login,
            database: master.database,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_master_has_port_tls_login_and_database() {
        let found = |text| {
            let (address, master) = NativeMaster::parse(text).unwrap().map_err(|_| ())?;
            let user = master.destination.user.unwrap_or_default();
            Ok((address.host, address.port, master.has_tls, user, master.database))
        };
        let plain = |host: &str, port| Ok((host.into(), port, false, String::new(), None));
        assert_eq!(found("todana://b.example"), plain("b.example", 11211));
        assert_eq!(found("todana://[::1]:7000"), plain("::1", 7000));
        assert_eq!(found("todanas://ann:p@b:7000/2"), Ok(("b".into(), 7000, true, "ann".into(), Some(2))));
        for wrong in ["todana://", "todana://b:0", "todana://b/x", "todana://b/70000", "todana://b/"] {
            assert_eq!(found(wrong), Err(()), "{wrong}");
        }
        assert_eq!(NativeMaster::parse("b.example:1978"), None);
    }
}
