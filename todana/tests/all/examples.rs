//! Runs the examples; they check their own results.

#[path = "../../examples/bank.rs"]
mod bank;
#[path = "../../examples/leaderboard.rs"]
mod leaderboard;
#[path = "../../examples/sessions.rs"]
mod sessions;
#[path = "../../examples/word_count.rs"]
mod word_count;

#[test]
fn bank_transfers_lose_nothing() {
    bank::main().unwrap();
}

#[test]
fn leaderboard_is_in_order() {
    leaderboard::main().unwrap();
}

#[test]
fn sessions_outlive_a_restart() {
    sessions::main().unwrap();
}

#[test]
fn word_count_counts() {
    word_count::main().unwrap();
}
