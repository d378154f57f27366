//! Dictionaries and key shapes neither fail on nor change any bytes.

#[path = "../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;
mod encoded_bytes;

#[test]
fn fuzz_inputs_are_encoded_and_decoded() {
    fuzz_inputs::play_all("dictionaries", 50, encoded_bytes::code_any);
}
