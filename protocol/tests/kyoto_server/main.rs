//! The server's side of Kyoto Tycoon's protocols.

mod exchange;
mod vectors;
