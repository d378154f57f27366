//! The tests of this crate as one program, because each program takes seconds to link. A test has
//! its own file beside this folder if it measures its process, runs itself again, or takes long.

#[path = "../any_key/mod.rs"]
mod any_key;
#[path = "../../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../exposition/mod.rs"]
mod exposition;
#[path = "../../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;
#[path = "../kyoto_client/mod.rs"]
mod kyoto_client;
#[path = "../kyoto_replica/mod.rs"]
mod kyoto_replica;
#[path = "../../../tests/mixed_dialects/mod.rs"]
mod mixed_dialects;
#[path = "../../../tests/proxy_bytes/mod.rs"]
mod proxy_bytes;
#[path = "../running/mod.rs"]
mod running;
#[path = "../../../tests/session_model/mod.rs"]
mod session_model;
#[path = "../../../tests/swayed_disk/mod.rs"]
mod swayed_disk;
#[path = "../transcript/mod.rs"]
mod transcript;
#[path = "../tyrant_client/mod.rs"]
mod tyrant_client;
#[path = "../tyrant_replica/mod.rs"]
mod tyrant_replica;

mod admin;
mod admin_api;
mod binary;
mod browsers;
mod cold_reads;
mod durability;
mod kyoto;
mod kyoto_durability;
mod kyoto_logins;
mod kyoto_queues;
mod kyoto_replication;
mod kyoto_replication_trouble;
mod kyoto_scripts;
mod kyoto_vectors;
mod large_requests;
mod large_values;
mod login;
mod mixed_records;
mod model_sessions;
mod native_images;
mod native_replication;
mod protocol_choice;
mod proxy;
mod proxy_binary;
mod proxy_hostile_servers;
mod proxy_hot_keys;
mod proxy_inputs;
mod proxy_large;
mod proxy_limits;
mod proxy_links;
mod proxy_listeners;
mod proxy_near;
mod proxy_protocols;
mod proxy_routes;
mod proxy_statistics;
mod read_only;
mod replica_acks;
mod replica_claims;
mod replica_hostile;
mod replica_log;
mod replication_statistics;
mod sessions;
mod socket_interfaces;
mod spans;
mod statistics;
mod tls;
mod tyrant_kinds;
mod tyrant_records;
mod tyrant_replication;
mod tyrant_scripts;
mod tyrant_table;
mod tyrant_text;
mod tyrant_values;
mod tyrant_vectors;
mod udp;
mod watch;
