//! Dictionaries and key shapes neither fail on nor change any bytes.

mod encoded_bytes;
mod encoded_records;
#[path = "../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;

#[test]
fn fuzz_inputs_are_encoded_and_decoded() {
    fuzz_inputs::play_all("dictionaries", 50, encoded_bytes::code_any);
}

#[test]
fn fuzz_inputs_change_encoded_records() {
    fuzz_inputs::play_all("encoded_records", 20, encoded_records::change_any);
}
