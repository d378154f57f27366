//! The client's side: requests out, answers in. What a replica says and reads is in [`replication`](super::replication).
//!
//! ```text
//! Output::write_call, put_resource -> bytes     bytes -> Answers::decode       -> Answer
//! put_bulk, put_record, put_key ... -> bytes    bytes -> BinaryAnswers::decode -> BinaryAnswer, record by record
//! ```
//!
//! The decoders are a few words of state and no buffer, as the server's, and as bounded.

mod answer;
mod binary;

pub use answer::{AnswerDecoder, AnswerStep, CallOutcome, HttpAnswer, put_resource};
pub use binary::{BinaryAnswer, BinaryAnswerDecoder, BinaryStep, put_bulk, put_key, put_record, put_script};
