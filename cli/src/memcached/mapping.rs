//! Converts memcached's settings to the options of the server. This is the only module of
//! `memcached` that knows what the server can do.

use super::data_place;
use super::extended::NegativeExpiry;
use super::listen::{ListenAddress, ListenerTls};
use super::server_failure::{SYSTEM, ServerFailure};
use super::settings::{AcceptedProtocol, MemcachedSettings, PortChoice};
use std::path::PathBuf;
use todana_server::{
    AuthenticationMode, DatabaseOptions, DialectChoice, IoMode, KyotoOptions, LimitOptions, ListenOptions,
    MemoryOptions, ObservationOptions, ProtocolOptions, ReplicationOptions, ServerOptions,
    SlowRequestOptions, TlsOptions, TyrantOptions,
};

/// The variable that names the users file for SASL. memcached reads it if it was built with that
/// feature.
const PASSWORDS_VARIABLE: &str = "MEMCACHED_SASL_PWDB";

/// The smallest memory limit of the server.
const MEMORY_LIMIT_MIN_MIB: u64 = 4;

/// The most bytes of all replies to one UDP request. memcached has no such limit and was abused for
/// the largest amplification attacks. Here the user has enabled UDP by `-U`, so an item of the
/// default maximum size must fit.
const UDP_REPLY_MAX: usize = 1 << 20;

/// The approximate memory that the process needs in addition to its records, in MiB.
const PROCESS_MIB: u64 = 3;

/// Converts the settings to the server's options. Fails if the server cannot satisfy a setting; no
/// setting is silently ignored.
pub(super) fn options(settings: &MemcachedSettings) -> Result<ServerOptions, ServerFailure> {
    let options = ServerOptions {
        proxy: None,
        listen: ListenOptions {
            addresses: if settings.unix_socket.is_some() { Vec::new() } else { listen(settings)? },
            port: match settings.tcp_port {
                PortChoice::Number(port) => port,
                PortChoice::Off | PortChoice::Any => 0,
            },
            tcp: settings.tcp_port != PortChoice::Off,
            udp_port: match settings.udp_port {
                _ if settings.unix_socket.is_some() => None,
                PortChoice::Off => None,
                PortChoice::Any => Some(0),
                PortChoice::Number(port) => Some(port),
            },
            udp_reply_max: UDP_REPLY_MAX,
            lenient_tls: true,
            unix_socket: settings.unix_socket.clone(),
            unix_mask: settings.unix_mask,
            backlog: settings.listen_backlog,
            tls: tls(settings)?,
            // memcached has no options for these: see `environment`.
            io: IoMode::default(),
        },
        memory: MemoryOptions {
            limit_mib: settings.memory_limit_mib.max(MEMORY_LIMIT_MIN_MIB),
            refuse_when_full: settings.refuse_when_full,
            emulate_full: settings.extended.emulate_full,
            ..MemoryOptions::default()
        },
        protocols: ProtocolOptions {
            cas_enabled: settings.cas_enabled,
            negative_is_sliding: settings.extended.negative_expiry == NegativeExpiry::Sliding,
            http_hosts: Vec::new(),
            debug_commands: settings.extended.debug_commands,
            protocol: match settings.protocol {
                AcceptedProtocol::Auto => DialectChoice::Auto,
                AcceptedProtocol::Ascii => DialectChoice::Text,
                AcceptedProtocol::Binary => DialectChoice::Binary,
            },
            authentication: authentication(
                settings,
                std::env::var_os(PASSWORDS_VARIABLE).map(PathBuf::from),
            )?,
            kyoto: KyotoOptions::default(),
            tyrant: TyrantOptions::default(),
        },
        databases: DatabaseOptions {
            stores_nothing: false,
            replication: ReplicationOptions::default(),
            snapshots: None,
            data: data_place::asked(settings.memory_file.as_deref(), |name| std::env::var_os(name))?,
            // memcached has a single database.
            database: None,
            sync: DatabaseOptions::default().sync,
            further: Vec::new(),
        },
        observation: ObservationOptions {
            verbosity: settings.verbosity,
            logs_requests: true,
            // memcached has other rules for its pid file: see `pid_file`.
            pid_file: None,
            watcher_buffer_bytes: settings.extended.watcher_buffer_kib as usize * 1024,
            prefix_delimiter: settings.prefix_delimiter,
            track_sizes: settings.extended.track_sizes,
            crawler_enabled: settings.extended.lru_crawler,
            slow_requests: SlowRequestOptions::default(),
            traces: None,
            // memcached has no option for admin pages: see `admin`.
            admin: None,
        },
        limits: LimitOptions {
            connections_max: settings.connections_max,
            connections_refused: settings.extended.maxconns_fast,
            idle_timeout_s: settings.extended.idle_timeout_s,
            threads: settings.threads,
            item_size_max: settings.item_size_max,
            requests_per_event: settings.requests_per_event,
            flush_allowed: settings.flush_allowed,
            shutdown_allowed: settings.shutdown_allowed,
            idle_between_requests: false,
            dump_allowed: settings.dump_allowed,
            watch_allowed: settings.watch_allowed,
        },
    };
    options.validate().map_err(|error| ServerFailure::usage(error.to_string()))?;
    Ok(options)
}

/// Returns the kind of login. `passwords` is the users file that the environment names.
fn authentication(
    settings: &MemcachedSettings,
    passwords: Option<PathBuf>,
) -> Result<AuthenticationMode, ServerFailure> {
    match (&settings.auth_file, passwords.filter(|path| !path.as_os_str().is_empty())) {
        (Some(path), _) => Ok(AuthenticationMode::Text(path.clone())),
        (None, _) if !settings.sasl => Ok(AuthenticationMode::None),
        (None, Some(path)) => Ok(AuthenticationMode::Sasl(path)),
        // memcached would use Cyrus SASL, whose user database is not readable here.
        (None, None) => Err(ServerFailure::bad_value(format!(
            "{PASSWORDS_VARIABLE} must name a file of users (`todana password USER` writes its lines); for example made \
             of Cyrus' database by: db_dump -p /etc/sasldb2 | todana password --from-sasldb > users\n\
             Error initializing sasl."
        ))),
    }
}

fn listen(settings: &MemcachedSettings) -> Result<Vec<String>, ServerFailure> {
    let list = settings.listen.as_deref().unwrap_or("*");
    let mut places = Vec::new();
    for listen in ListenAddress::read(list) {
        if listen.tls.is_some() && !settings.tls {
            return Err(ServerFailure::new(
                SYSTEM,
                format!(
                    "'notls', 'btls' and 'mtls' are valid only when SSL is enabled\n\
                     failed to listen on one of interface(s) {list}"
                ),
            ));
        }
        if listen.is_proxy {
            return Err(ServerFailure::new(
                SYSTEM,
                format!("Server not built with proxy\nfailed to listen on one of interface(s) {list}"),
            ));
        }
        let protocol = match listen.protocol {
            None => "",
            Some(AcceptedProtocol::Ascii) => "proto[ascii]:",
            Some(AcceptedProtocol::Binary) => "proto[binary]:",
            Some(AcceptedProtocol::Auto) => "proto[auto]:",
        };
        let tls = match listen.tls {
            None => "",
            Some(ListenerTls::Off) => "notls:",
            Some(ListenerTls::Basic) => "btls:",
            Some(ListenerTls::Mutual) => "mtls:",
        };
        places.push(format!("{tls}{protocol}{}", listen.place));
    }
    Ok(places)
}

/// OpenSSL's number for the format DER. 1 is PEM, and no other formats exist.
const KEY_FORMAT_DER: i64 = 2;

fn tls(settings: &MemcachedSettings) -> Result<Option<TlsOptions>, ServerFailure> {
    if !settings.tls {
        return Ok(None);
    }
    let tls = &settings.extended.tls;
    let Some(chain) = tls.chain_cert.clone() else {
        return Err(ServerFailure::usage(
            "Error loading the certificate chain: (null) : -o ssl_chain_cert is missing",
        ));
    };
    if tls.key_format.is_some_and(|format| !(1..=KEY_FORMAT_DER).contains(&format)) {
        return Err(ServerFailure::usage(
            "keys from engines (ssl_keyformat) are not supported; 1 is PEM, 2 is DER",
        ));
    }
    Ok(Some(TlsOptions {
        chain,
        key: tls.key.clone(),
        ca: tls.ca_cert.clone(),
        verify_mode: tls.verify_mode,
        only_1_3: tls.min_version == Some(3),
        ciphers: tls.ciphers.clone(),
        // memcached issues session tickets even without ssl_session_cache.
        resumption: true,
        session_cache: tls.session_cache,
        write_buffer_bytes: tls.write_buffer_kib.map(|kib| u64::from(kib) << 10),
    }))
}

/// Returns warnings about combinations of settings that may surprise the user. Printed on standard
/// error at any verbosity.
pub(super) fn warnings(settings: &MemcachedSettings) -> Vec<&'static str> {
    let mut warnings = Vec::new();
    if settings.tls && settings.udp_port != PortChoice::Off && settings.unix_socket.is_none() {
        warnings.push("-U: UDP has no TLS; requests over UDP are served in clear (-U 0 to disable)");
    }
    let asks =
        |list: &str| ListenAddress::read(list).iter().any(|listen| listen.tls == Some(ListenerTls::Mutual));
    if settings.extended.tls.ca_cert.is_none() && settings.listen.as_deref().is_some_and(asks) {
        warnings.push(
            "mtls: all client certificates are refused, because no authority is given; add -o ssl_ca_cert",
        );
    }
    warnings
}

/// Returns the options that have no effect here, each with its reason. Printed with `-v`.
pub(super) fn without_effect(settings: &MemcachedSettings) -> Vec<String> {
    let mut notes = Vec::new();
    for letter in &settings.given {
        let reason = match letter {
            b'f' | b'n' => "records are not kept in slabs",
            b'L' => "the system chooses the size of its pages",
            b'N' => "threads are not bound to network queues",
            b'C' => "a CAS id takes no memory until a client asks for one; clients still get them",
            _ => continue,
        };
        notes.push(format!("-{} has no effect: {reason}", char::from(*letter)));
    }
    for word in &settings.extended.given {
        let reason = match word.strip_prefix("no_").unwrap_or(word) {
            "maxconns_fast" | "idle_timeout" | "negative_exptime" | "debug_commands" | "emulate_full" => {
                continue;
            }
            "track_sizes" | "lru_crawler" | "watcher_logbuf_size" => continue,
            "drop_privileges" | "relaxed_privileges" => "system calls are not filtered",
            "sock_cookie_id" => "sockets are not marked",
            "inline_ascii_resp" | "resp_obj_mem_limit" | "read_buf_mem_limit" => {
                "buffers exist only while something is in them"
            }
            "hash_algorithm" | "hashpower" | "hashexpand" => "the table grows and shrinks by itself",
            "worker_logbuf_size" => "events go to their watchers immediately",
            "modern" => "there is a single storage layout",
            word if word.starts_with("slab_") || word == "chunked_items" => "records are not kept in slabs",
            word if word.starts_with("ext_") => "there is no external storage",
            word if word.starts_with("ssl_") && !settings.tls => "TLS is off (-Z)",
            "ssl_kernel_tls" => "records are encrypted in the process",
            "ssl_wbuf_size" => "buffers exist only while something is in them",
            "ssl_session_cache" => "sessions are resumed by tickets, which need no cache",
            "ssl_min_version" if settings.extended.tls.min_version < Some(2) => {
                "versions older than TLS 1.2 are not supported"
            }
            word if word.starts_with("ssl_") => continue,
            _ => "there are no LRU queues",
        };
        notes.push(format!("-o {word} has no effect: {reason}"));
    }
    if settings.tcp_port == PortChoice::Off
        && settings.udp_port == PortChoice::Off
        && settings.unix_socket.is_none()
    {
        notes.push("-p 0: the server is unreachable without TCP, UDP (-U) or a Unix socket (-s)".into());
    }
    if settings.udp_port != PortChoice::Off && settings.unix_socket.is_none() {
        notes.push(format!(
            "-U: replies to one UDP request are limited to {UDP_REPLY_MAX} bytes, because senders can be forged"
        ));
    }
    if settings.memory_limit_mib < MEMORY_LIMIT_MIN_MIB {
        notes.push(format!(
            "-m {} is too low; the limit is {MEMORY_LIMIT_MIN_MIB} MB for records, index and connections",
            settings.memory_limit_mib
        ));
    }
    let records = settings.memory_limit_mib.max(MEMORY_LIMIT_MIN_MIB).saturating_sub(PROCESS_MIB) << 20;
    if settings.has(b'I') && settings.item_size_max > records {
        notes.push(format!(
            "-I: the largest items may not fit, because -m {} limits the whole process with its connections",
            settings.memory_limit_mib
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::settings::MemcachedStart;
    use super::*;
    use std::ffi::OsString;

    fn settings(line: &[&str]) -> MemcachedSettings {
        match MemcachedSettings::read("memcached", line.iter().map(OsString::from).collect()).unwrap() {
            MemcachedStart::Serve(settings) => *settings,
            MemcachedStart::Print(text) => panic!("{line:?} prints {text}"),
        }
    }

    #[test]
    fn defaults_are_those_of_memcached() {
        let expected = ServerOptions {
            listen: ListenOptions {
                addresses: vec!["*".into()],
                udp_reply_max: 1 << 20,
                lenient_tls: true,
                ..ListenOptions::default()
            },
            observation: ObservationOptions { logs_requests: true, ..ObservationOptions::default() },
            ..ServerOptions::default()
        };
        assert_eq!(options(&settings(&[])).unwrap(), expected);
        assert_eq!(
            (expected.listen.port, expected.memory.limit_mib, expected.limits.item_size_max),
            (11211, 64, 1 << 20)
        );
        assert_eq!((expected.limits.connections_max, expected.limits.threads), (1024, 4));
    }

    #[test]
    fn every_option_of_the_server_can_be_reached() {
        let line = "-p 1 -l 127.0.0.1,[::1]:2 -m 128 -M -c 9 -t 2 -I 2m -vv -b 7 -R 5 -C -F -A -B binary -P /run/pid -U 3 -X -W -D/ \
            -o negative_exptime=sliding,debug_commands,emulate_full \
            -o track_sizes,no_lru_crawler,watcher_logbuf_size=7,no_maxconns_fast,idle_timeout=30";
        let mapped = options(&settings(&line.split(' ').collect::<Vec<_>>())).unwrap();
        assert_eq!(
            mapped,
            ServerOptions {
                proxy: None,
                listen: ListenOptions {
                    addresses: vec!["127.0.0.1".into(), "[::1]:2".into()],
                    port: 1,
                    tcp: true,
                    udp_port: Some(3),
                    udp_reply_max: 1 << 20,
                    lenient_tls: true,
                    unix_socket: None,
                    unix_mask: 0o700,
                    backlog: 7,
                    tls: None,
                    io: IoMode::default(),
                },
                memory: MemoryOptions {
                    limit_mib: 128,
                    refuse_when_full: true,
                    emulate_full: true,
                    ..MemoryOptions::default()
                },
                protocols: ProtocolOptions {
                    cas_enabled: false,
                    negative_is_sliding: true,
                    http_hosts: Vec::new(),
                    debug_commands: true,
                    protocol: DialectChoice::Binary,
                    authentication: AuthenticationMode::None,
                    kyoto: KyotoOptions::default(),
                    tyrant: TyrantOptions::default()
                },
                databases: DatabaseOptions {
                    replication: ReplicationOptions::default(),
                    snapshots: None,
                    stores_nothing: false,
                    data: None,
                    database: None,
                    sync: DatabaseOptions::default().sync,
                    further: Vec::new()
                },
                observation: ObservationOptions {
                    verbosity: 2,
                    logs_requests: true,
                    pid_file: None,
                    watcher_buffer_bytes: 7 << 10,
                    prefix_delimiter: Some(b'/'),
                    track_sizes: true,
                    crawler_enabled: false,
                    slow_requests: SlowRequestOptions::default(),
                    traces: None,
                    admin: None
                },
                limits: LimitOptions {
                    connections_max: 9,
                    connections_refused: false,
                    idle_timeout_s: 30,
                    threads: 2,
                    item_size_max: 2 << 20,
                    requests_per_event: 5,
                    flush_allowed: false,
                    shutdown_allowed: true,
                    idle_between_requests: false,
                    dump_allowed: false,
                    watch_allowed: false
                }
            }
        );
        let unix =
            options(&settings(&["-s", "/run/s", "-a", "0777", "-p", "1", "-l", "::1", "-U", "5"])).unwrap();
        let listen = unix.listen;
        assert_eq!(
            (listen.unix_socket, listen.unix_mask, listen.addresses),
            (Some("/run/s".into()), 0o777, vec![])
        );
        assert_eq!(listen.udp_port, None);
        let mapped = options(&settings(&["-p", "0", "-U", "5"])).unwrap();
        assert_eq!((mapped.listen.tcp, mapped.listen.udp_port), (false, Some(5)));
        let words = ["-l", "proto[binary]:::1,proto[ascii]:127.0.0.1", "-l", "proto[negotiating]:127.0.0.2"];
        assert_eq!(
            options(&settings(&words)).unwrap().listen.addresses,
            ["proto[binary]:::1", "proto[ascii]:127.0.0.1", "proto[auto]:127.0.0.2"]
        );
        for (words, port) in [(&["-U", "-1"][..], Some(0)), (&["-U", "0"], None), (&["-U", "5"], Some(5))] {
            assert_eq!(options(&settings(words)).unwrap().listen.udp_port, port);
        }
    }

    #[test]
    fn every_tls_word_can_be_reached() {
        let words = "ssl_chain_cert=/c,ssl_key=/k,ssl_ca_cert=/a,ssl_verify_mode=2,ssl_ciphers=HIGH,ssl_min_version=3";
        let read = settings(&["-Z", "-l", "127.0.0.1,notls:127.0.0.1:2,mtls:[::1]:3,btls:*:4", "-o", words]);
        let mapped = options(&read).unwrap();
        let tls = TlsOptions {
            chain: "/c".into(),
            key: Some("/k".into()),
            ca: Some("/a".into()),
            verify_mode: 2,
            only_1_3: true,
            ciphers: Some("HIGH".into()),
            resumption: true,
            session_cache: false,
            write_buffer_bytes: None,
        };
        assert_eq!(mapped.listen.tls, Some(tls));
        assert_eq!(mapped.listen.addresses, ["127.0.0.1", "notls:127.0.0.1:2", "mtls:[::1]:3", "btls:*:4"]);
        assert_eq!(without_effect(&read), Vec::<String>::new());
    }

    #[test]
    fn unsupported_tls_is_refused_or_reported() {
        let refused = |words: &[&str]| options(&settings(words)).unwrap_err();
        assert_eq!(refused(&["-Z"]).code, 64);
        assert_eq!(refused(&["-Z", "-o", "ssl_chain_cert=/c,ssl_keyformat=3"]).code, 64);
        assert_eq!(refused(&["-Z", "-o", "ssl_chain_cert=/c,ssl_verify_mode=1"]).code, 64);
        assert_eq!(refused(&["-l", "notls:127.0.0.1"]).code, 71);
        let words = "ssl_chain_cert=/c,ssl_min_version=0,ssl_kernel_tls,ssl_wbuf_size=64,ssl_session_cache";
        let read = settings(&["-Z", "-o", words]);
        let mapped = options(&read).unwrap().listen.tls.unwrap();
        assert!(!mapped.only_1_3);
        assert_eq!((mapped.session_cache, mapped.write_buffer_bytes), (true, Some(64 << 10)));
        let named: Vec<_> =
            without_effect(&read).iter().map(|note| note.split(' ').nth(1).unwrap().to_string()).collect();
        assert_eq!(named, ["ssl_min_version", "ssl_kernel_tls", "ssl_wbuf_size", "ssl_session_cache"]);
    }

    #[test]
    fn lenient_tls_is_served_with_a_warning() {
        let both = ["-Z", "-U", "5", "-o", "ssl_chain_cert=/c"];
        let read = settings(&both);
        assert_eq!(options(&read).unwrap().listen.udp_port, Some(5));
        let told = "-U: UDP has no TLS; requests over UDP are served in clear (-U 0 to disable)";
        assert_eq!(warnings(&read), [told]);
        assert_eq!(warnings(&settings(&["-U", "5"])), [""; 0]);
        assert_eq!(warnings(&settings(&["-Z", "-U", "0", "-o", "ssl_chain_cert=/c"])), [""; 0]);
    }

    /// The test ssl_ports.t of memcached failed, because the server refused to start with its
    /// options.
    #[test]
    fn mtls_without_authority_draws_a_warning() {
        let read = settings(&["-Z", "-l", "mtls:127.0.0.1", "-o", "ssl_chain_cert=/c"]);
        assert!(options(&read).is_ok());
        let told =
            "mtls: all client certificates are refused, because no authority is given; add -o ssl_ca_cert";
        assert_eq!(warnings(&read), [told]);
        let read = settings(&["-Z", "-l", "mtls:127.0.0.1", "-o", "ssl_chain_cert=/c,ssl_ca_cert=/a"]);
        assert_eq!(warnings(&read), [""; 0]);
    }

    #[test]
    fn logins_need_a_users_file() {
        let file = |path: &str| Some(PathBuf::from(path));
        let text = authentication(&settings(&["-Y", "/users"]), file("/other")).unwrap();
        assert_eq!(text, AuthenticationMode::Text("/users".into()));
        let sasl = settings(&["-S"]);
        assert_eq!(authentication(&sasl, file("/users")).unwrap(), AuthenticationMode::Sasl("/users".into()));
        for missing in [None, file("")] {
            let refusal = authentication(&sasl, missing).unwrap_err();
            assert_eq!(refusal.code, 1);
            assert!(refusal.message.ends_with("\nError initializing sasl."), "{}", refusal.message);
        }
        assert_eq!(authentication(&settings(&[]), file("/users")).unwrap(), AuthenticationMode::None);
    }

    #[test]
    fn low_memory_limit_is_raised_with_a_note() {
        let small = settings(&["-m", "3"]);
        assert_eq!(options(&small).unwrap().memory.limit_mib, 4);
        assert_eq!(
            without_effect(&small),
            ["-m 3 is too low; the limit is 4 MB for records, index and connections"]
        );
    }

    #[test]
    fn memory_limit_near_the_item_size_is_reported() {
        let told =
            "-I: the largest items may not fit, because -m 5 limits the whole process with its connections";
        assert_eq!(without_effect(&settings(&["-m", "5", "-I", "2300k"])), [told]);
        assert_eq!(without_effect(&settings(&["-m", "64", "-I", "32m"])), Vec::<String>::new());
    }
}
