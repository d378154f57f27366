//! Opening a database: its name, the contents of its directory, its engine, its owner.

mod check;
pub(crate) mod contents;
pub(crate) mod engine;
mod hint;
mod name;
mod names;
mod open_database;
mod tuning_words;

pub use check::DataPurpose;
pub use engine::{EngineOptions, Kind, Storage};
pub(crate) use engine::{hash_at, tree_at};
pub(crate) use hint::{hinted, hinted_tree};
pub use name::{Name, Tuning};
pub use open_database::{LoadedData, OpenDatabase, OpenOptions};
