//! A leaderboard in an ordered database: scores are keys, so that the best ones are neighbours.
//!
//! ```text
//! cargo run -p todana --example leaderboard
//! ```

use todana::{Db, Records, Result, UpdateAction};

/// `player:NAME` holds the score, `score:SCORE:NAME` is empty: the order is in the key. Both change
/// together.
fn score(db: &Db, name: &str, points: u64) -> Result<u64> {
    let transaction = db.begin()?;
    let player = format!("player:{name}").into_bytes();
    let mut before = None;
    let mut after = points;
    transaction.update(&player, &mut |old| {
        before = old.and_then(|old| std::str::from_utf8(old.value).ok()?.parse::<u64>().ok());
        after = before.unwrap_or(0) + points;
        UpdateAction::Value(after.to_string().into_bytes())
    })?;
    if let Some(before) = before {
        transaction.remove(&entry(before, name))?;
    }
    transaction.set(&entry(after, name), b"")?;
    transaction.commit()?;
    Ok(after)
}

/// Returns the key of a score, with leading zeros, so that the order of the bytes is that of the
/// numbers.
fn entry(score: u64, name: &str) -> Vec<u8> {
    format!("score:{score:020}:{name}").into_bytes()
}

fn best(db: &Db, count: usize) -> Result<Vec<(String, u64)>> {
    db.prefix(b"score:")
        .keys()
        .rev()
        .take(count)
        .map(|key| {
            let key = key?;
            let text = String::from_utf8_lossy(&key["score:".len()..]).into_owned();
            let (score, name) = text.split_once(':').unwrap_or(("0", ""));
            Ok((name.to_owned(), score.parse().unwrap_or(0)))
        })
        .collect()
}

/// Returns the number of players with a higher score.
fn rank(db: &Db, score: u64) -> Result<usize> {
    Ok(1 + db.range(entry(score + 1, "")..b"score;".to_vec())?.keys().count())
}

pub(crate) fn main() -> Result<()> {
    let db = Db::open("mem:tree")?;
    for (name, points) in [("ada", 300), ("bob", 120), ("cleo", 90), ("bob", 250), ("dan", 5)] {
        score(&db, name, points)?;
    }
    let best = best(&db, 3)?;
    for (place, (name, score)) in best.iter().enumerate() {
        println!("{}. {name} {score}", place + 1);
    }
    let names: Vec<_> = best.iter().map(|(name, score)| (name.as_str(), *score)).collect();
    assert_eq!(names, [("bob", 370), ("ada", 300), ("cleo", 90)]);
    assert_eq!(rank(&db, 90)?, 3);
    Ok(())
}
