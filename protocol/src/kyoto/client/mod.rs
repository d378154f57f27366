//! The client side: writes requests and decodes answers. For the replica's side see
//! [`replication`](super::replication).
//!
//! ```text
//! AnswerPairs::write_call, put_resource -> bytes
//! put_bulk, put_record, put_key ...     -> bytes
//! bytes -> AnswerDecoder::decode        -> HttpAnswer
//! bytes -> BinaryAnswerDecoder::decode  -> BinaryAnswer, record by record
//! ```
//!
//! Like the decoders of the server, these decoders are a few words of state without a buffer, and
//! bound the lengths that they accept.

mod answer;
mod binary;

pub use answer::{AnswerDecoder, AnswerStep, CallOutcome, HttpAnswer, put_resource};
pub use binary::{BinaryAnswer, BinaryAnswerDecoder, BinaryStep, put_bulk, put_key, put_record, put_script};
