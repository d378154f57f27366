//! Random sessions against the naive model of `tests/session_model`; the fuzz target `session` plays the same.

#[path = "../../tests/session_model/mod.rs"]
mod session_model;

#[test]
fn sessions_that_the_fuzzer_keeps_agree_with_the_model() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/session");
    let inputs: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(inputs.len() > 3, "{} inputs", inputs.len());
    for input in inputs {
        session_model::check(&std::fs::read(input).unwrap());
    }
}

#[test]
fn random_sessions_agree_with_the_model() {
    let mut random = fastrand::Rng::with_seed(20_261_121);
    for _ in 0..3000 {
        let bytes: Vec<u8> = (0..random.usize(0..600)).map(|_| random.u8(..)).collect();
        session_model::check(&bytes);
    }
}
