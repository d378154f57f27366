//! `todana bench trace` as users run it, with a small trace that is created here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn bench_trace(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_todana")).args(["bench", "trace"]).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns requests for 200 keys in three rounds. Ten hot keys are requested between all others,
/// which occur once per round.
fn requests() -> Vec<u32> {
    (0..3u32).flat_map(|_| 0..190u32).flat_map(|n| [n % 10, 10 + n]).collect()
}

fn write_trace(directory: &Path, name: &str, ids: &[u32]) -> PathBuf {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let path = directory.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn misses_of_all_algorithms_match_a_manual_count() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_trace(directory.path(), "hot.u32", &requests());
    let output =
        bench_trace(&[path.to_str().unwrap(), "--capacity", "50,100", "--rounds", "2", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let trace = &results["traces"][0];
    assert_eq!(
        (&trace["file"], &trace["requests"], &trace["keys"]),
        (&"hot.u32".into(), &1140.into(), &200.into())
    );
    let [half, all] = [&trace["capacities"][0], &trace["capacities"][1]];
    // LRU keeps the latest 100 records. So the 190 cold keys always miss, and each hot key misses
    // once.
    assert_eq!(half["capacity_records"], 100);
    assert_eq!(half["references"]["LRU"], 580.0 / 1140.0);
    // A cache that is large enough misses each key once, whatever the algorithm.
    assert_eq!(all["capacity_records"], 200);
    for ratio in [&all["references"]["LRU"], &all["references"]["S3-FIFO"], &all["references"]["SIEVE"]] {
        assert_eq!(*ratio, 200.0 / 1140.0);
    }
    assert_eq!(all["miss_ratio"], 200.0 / 1140.0);
    for (cell, capacity) in [(half, 100.0), (all, 200.0)] {
        for round in cell["rounds"].as_array().unwrap() {
            let misses = round["miss_ratio"].as_f64().unwrap() * 1140.0;
            assert_eq!(
                round["evictions"].as_f64().unwrap(),
                misses.round() - capacity,
                "one for each newcomer"
            );
            assert_eq!(round["held_max"].as_f64().unwrap(), capacity);
        }
    }
}

#[test]
fn sizes_that_differ_limit_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_trace(directory.path(), "hot.u32", &requests());
    let words = ["--capacity", "50", "--rounds", "1", "--value-size", "lognormal:100:1", "--json", "-"];
    let results = |more: &[&str]| -> serde_json::Value {
        let output = bench_trace(&[&[path.to_str().unwrap()], &words[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let all = results(&[]);
    assert_eq!(all["work"]["value_size"], "lognormal:100:1");
    let half = &all["traces"][0]["capacities"][0];
    let (capacity, round) = (half["capacity_bytes"].as_u64().unwrap(), &half["rounds"][0]);
    assert!(capacity > 100 * 100 && round["held_max"].as_u64().unwrap() <= capacity, "{half}");
    // In half of the bytes, GDSF keeps more than half of the objects, which are the small ones.
    let ratio = |of: &serde_json::Value| of["GDSF"].as_f64().unwrap();
    assert!(ratio(&half["references"]) < ratio(&half["reference_bytes"]), "{half}");
    assert!(round["miss_ratio"].as_f64() < half["references"]["LRU"].as_f64(), "{half}");
    assert!(results(&["--evict-for", "bytes"]) != all);
    let wrong = bench_trace(&["t", "--value-size", "key"]);
    assert_eq!(wrong.status.code(), Some(2), "a size that is not repeated");
}

#[test]
fn figures_depend_only_on_the_seed() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_trace(directory.path(), "t", &requests());
    let table = |seed| {
        let output =
            bench_trace(&[path.to_str().unwrap(), "--capacity", "50", "--seed", seed, "--rounds", "1"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(table("1"), table("1"));
    let listed = |words: &[&str]| {
        let output = bench_trace(&[&[path.to_str().unwrap(), "--rounds", "1"], words].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(listed(&["--capacity", "1", "3", "10"]), listed(&["--capacity", "1,3,10"]));
    assert!(["2", "3", "4", "5"].iter().any(|seed| table(seed) != table("1")));
    assert!(table("1").starts_with("t: 1140 requests, 200 keys; miss ratios in %\n"));
}

#[test]
fn compressed_trace_gives_the_same_figures_and_charts() {
    let directory = tempfile::tempdir().unwrap();
    let plain = write_trace(directory.path(), "plain", &requests());
    let compressed = directory.path().join("compressed");
    std::fs::write(&compressed, zstd::encode_all(&std::fs::read(&plain).unwrap()[..], 3).unwrap()).unwrap();
    let [json, page] = ["results.json", "page.html"].map(|name| directory.path().join(name));
    let words = [&plain, &compressed, Path::new("--json"), &json, Path::new("--plot"), &page];
    let output = bench_trace(&words.map(|word| word.to_str().unwrap()));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let [first, second] = [0, 1].map(|index| &results["traces"][index]["capacities"]);
    assert_eq!(first.as_array().unwrap().len(), 4);
    assert_eq!(first, second);
    let page = std::fs::read_to_string(&page).unwrap();
    assert_eq!(page.matches("<polyline").count(), 10);
    assert!(page.contains(&text(&output.stdout)), "the page holds the table");
}

#[test]
fn invalid_trace_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let cut = directory.path().join("cut");
    std::fs::write(&cut, b"abcde").unwrap();
    let missing = directory.path().join("missing");
    for (path, reason) in [(&cut, "1 bytes after the last whole id"), (&missing, "No such file")] {
        let output = bench_trace(&[path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3));
        let complaint = text(&output.stderr);
        assert!(complaint.contains(path.to_str().unwrap()) && complaint.contains(reason), "{complaint}");
    }
    let output = bench_trace(&["t", "--plot", "x.png"]);
    assert_eq!(output.status.code(), Some(2), "a picture of a kind that is not drawn");
    assert!(text(&output.stderr).contains("an .html page or an .svg picture"), "{}", text(&output.stderr));
    for words in [&[][..], &["t", "--capacity", "0"], &["t", "--capacity", "101"], &["t", "--rounds", "0"]] {
        assert_eq!(bench_trace(words).status.code(), Some(2), "{words:?}");
    }
}
