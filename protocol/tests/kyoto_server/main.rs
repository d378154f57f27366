//! Tests the server side of Kyoto Tycoon's protocols.

mod binary;
mod exchange;
mod framing;
mod logins;
mod maps;
mod model;
mod parameters;
mod splits;
mod vectors;
