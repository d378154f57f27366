//! Plays random sessions, and compares the replies with the naive model of `tests/session_model`.
//! The fuzz target `session` does the same.

use crate::fuzz_inputs;
use crate::session_model;

#[test]
fn fuzz_corpus_sessions_agree_with_the_model() {
    fuzz_inputs::play_all("session", 20, session_model::check);
}

#[test]
fn random_sessions_agree_with_the_model() {
    let mut random = fastrand::Rng::with_seed(20_261_121);
    for _ in 0..3000 {
        let bytes: Vec<u8> = (0..random.usize(0..600)).map(|_| random.u8(..)).collect();
        session_model::check(&bytes);
    }
}
