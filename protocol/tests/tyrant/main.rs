//! Tokyo Tyrant's protocols: requests as its own clients send them, and replies as its own server
//! sends them.

mod binary;
#[path = "../kyoto_files/pieces.rs"]
#[allow(dead_code)]
mod pieces;
mod update_log;
