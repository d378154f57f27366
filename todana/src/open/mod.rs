//! Opens databases: parses the name, checks the contents of the directory, constructs the engine,
//! and owns the open database.

mod cabinet_file;
mod check;
mod cluster_name;
pub(crate) mod contents;
pub(crate) mod engine;
mod hint;
mod name;
mod names;
mod open_database;
mod tuning_words;

pub use cabinet_file::cabinet_file_problem;
pub use check::DataPurpose;
pub use cluster_name::ClusterName;
pub(crate) use engine::hash_at;
pub use engine::{DatabaseKind, DatabaseStorage, EngineOptions};
pub(crate) use hint::{hinted, hinted_tree};
pub use name::{DatabaseName, DatabaseTuning};
pub use open_database::{LoadedData, OpenDatabase, OpenOptions};
