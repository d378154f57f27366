//! The tests of this crate as one program, because each program takes seconds to link. A test has
//! its own file beside this folder if it measures its process, runs itself again, or takes long.

#[path = "../../../tests/directory_contents/mod.rs"]
mod directory_contents;
#[path = "../../../tests/any_key/mod.rs"]
mod keys;
#[path = "../ktserver_running/mod.rs"]
mod ktserver_running;
#[path = "../memcached_running/mod.rs"]
mod memcached_running;
#[path = "../running/mod.rs"]
mod running;

mod admin;
mod advise;
mod any_key;
mod careful_commands;
mod client_logins;
mod command_line;
mod conversation;
mod curl_logins;
mod damaged_neighbour;
mod database_guards;
mod databases;
mod disk_backups;
mod disk_damage;
mod disk_trouble;
mod doctor;
mod dump;
mod durability_commands;
mod every_place;
mod first_minute;
mod foreign_files;
mod hash_salvage;
mod ktserver;
mod ktserver_data;
mod ktserver_restarts;
mod large_values;
mod logins;
mod memcached;
mod memory_file;
mod memory_limit;
mod moving;
mod newcomer;
mod overlap;
mod proxy;
mod proxy_files;
mod proxy_names;
mod refused_writes;
mod replica_flags;
mod replication;
mod restore_file;
mod ring;
mod second_database;
mod service_manager;
mod shell;
mod streams;
mod tls;
mod tokyo_tools;
mod trace;
mod tree_salvage;
mod ttserver;
mod tyrant_logs;
mod verified_hash;
