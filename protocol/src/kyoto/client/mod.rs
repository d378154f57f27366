//! The client side: requests out, answers in. For the replica's side see
//! [`replication`](super::replication).
//!
//! ```text
//! AnswerPairs::write_call, put_resource -> bytes
//! put_bulk, put_record, put_key ...     -> bytes
//! bytes -> AnswerDecoder::decode        -> HttpAnswer
//! bytes -> BinaryAnswerDecoder::decode  -> BinaryAnswer, record by record
//! ```
//!
//! Like the server's decoders, these are a few words of state without a buffer, and bounded.

mod answer;
mod binary;

pub use answer::{AnswerDecoder, AnswerStep, CallOutcome, HttpAnswer, put_resource};
pub use binary::{BinaryAnswer, BinaryAnswerDecoder, BinaryStep, put_bulk, put_key, put_record, put_script};
