//! Opening a database: its name, what lies at its place, its engine.

pub(crate) mod contents;
pub(crate) mod engine;
mod hint;
mod name;
mod names;
mod tuning_words;

pub use engine::{EngineOptions, Kind, Storage};
pub(crate) use engine::{hash_at, tree_at};
pub(crate) use hint::{hinted, hinted_tree};
pub use name::{Name, Tuning};
