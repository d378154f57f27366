//! Plays the inputs of the fuzz target `table_search`.

use crate::fuzz_inputs;
use crate::table_search;

#[test]
fn indexes_do_not_change_found_rows() {
    fuzz_inputs::play_all("table_search", 200, table_search::play);
}
