//! Dictionaries and key shapes neither fail on nor change any bytes.

mod encoded_bytes;
#[path = "../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;

#[test]
fn fuzz_inputs_are_encoded_and_decoded() {
    fuzz_inputs::play_all("dictionaries", 50, encoded_bytes::code_any);
}
