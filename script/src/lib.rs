//! Procedures in Lua with Kyoto Tycoon's API.
//!
//! ```text
//! Program      the text of the procedures, checked
//! Interpreter  one for each worker: the loaded program and its databases
//! call --> a procedure, bounded in time and memory --> its outcome
//! ScriptDatabase       a database that the caller makes available
//! ```
//!
//! A procedure never runs inside a visit of an engine. To decide on a record, it reads the record
//! and decides, and the decision is stored if the record is unchanged; otherwise the procedure
//! decides again. Transactions that it leaves open are aborted.
//!
//! Not here: requests and replies of clients (see the server), and the meaning of calls for a
//! record (`todana::kyoto`).
//!
//! ```
//! use std::sync::Arc;
//! use todana::Db;
//! use todana_script::{Interpreter, ScriptOptions, Program};
//!
//! let text = b"function hit(input, output)
//!     output.hits = __kyototycoon__.db:increment(input.page, 1)
//!     return 0
//! end";
//! let program = Program::new("hits.lua", text)?;
//! let db = Db::open("mem:hash").map_err(|error| error.to_string()).unwrap();
//! let options = ScriptOptions::default();
//! let mut interpreter = Interpreter::new(&program, vec![Arc::new(db)], 0, &options)?;
//! interpreter.call(b"hit", [(&b"page"[..], &b"/"[..])]);
//! let outcome = interpreter.call(b"hit", [(&b"page"[..], &b"/"[..])]).unwrap();
//! assert_eq!(outcome.code, 0);
//! assert_eq!(outcome.output[&b"hits"[..]], b"2");
//! # Ok::<(), todana_script::LoadError>(())
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod bulk;
mod context;
mod cursor;
mod database;
mod database_methods;
mod entire_database;
mod error;
mod files;
mod functions;
mod interpreter;
mod limits;
mod map_reduce;
mod pattern;
mod program;
mod sandbox;
mod source;
mod strings;
mod transaction_turn;
pub mod tyrant;
mod visitor;

pub use context::ScriptOptions;
pub use interpreter::{Interpreter, ProcedureOutcome, STACK_SIZE, codes};
pub use program::{LoadError, Program};
pub use source::ScriptDatabase;
