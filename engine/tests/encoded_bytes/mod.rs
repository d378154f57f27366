//! Encodes and decodes fuzz input with dictionaries and key shapes.
//!
//!     choice(1) | bytes        choice: bit 0 the dictionary (tokens, frames), bits 1-2 the shape

use std::sync::LazyLock;
use todana_engine::dictionary::{
    SampleTraining, TrainedDictionary, TrainingSample, TrainingStep, VALUE_LEN_MAX,
};
use todana_engine::key_shape::{KeyShapes, find_shapes};

/// A dictionary of tokens, and one of zstd.
static DICTIONARIES: LazyLock<[TrainedDictionary; 2]> = LazyLock::new(|| {
    let short = |n: u64| format!(r#"{{"id":{n},"hash":"{:016x}"}}"#, n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let line = |n: u64, line: u64| format!("{}: {} of {line}; ", n % 7 * line, n.pow(line as u32 % 3));
    [train(short), train(|n| (0..50).map(|number| line(n, number)).collect())]
});

static SHAPES: LazyLock<KeyShapes> = LazyLock::new(|| {
    let key = |n: u32| match n % 4 {
        0 => format!("user:{n}:profile"),
        1 => format!("session:{n:08x}-0000-4000-8000-{n:012x}"),
        2 => format!("rate:{}.{}.7.8", n % 256, n / 7 % 256),
        _ => format!("page:{}", ["salt", "tea"][n as usize / 4 % 2]),
    };
    let keys: Vec<String> = (0..400).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let mut shapes = KeyShapes::default();
    find_shapes(&keys, &KeyShapes::default()).into_iter().for_each(|shape| shapes.add(shape));
    assert_eq!(shapes.len(), 4);
    shapes
});

fn train(value: impl Fn(u64) -> String) -> TrainedDictionary {
    let mut sample = TrainingSample::default();
    (0..600).for_each(|n| assert!(sample.push(value(n).as_bytes())));
    let mut training = SampleTraining::new(sample).expect("enough values");
    loop {
        match training.step(None) {
            TrainingStep::Working => {}
            TrainingStep::Useful(dictionary) => return *dictionary,
            TrainingStep::Useless => panic!("the values resemble each other"),
        }
    }
}

/// Decodes any bytes, and encodes them as a value and as a key.
pub(crate) fn code_any(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let dictionary = &DICTIONARIES[usize::from(choice & 1)];
    let mut buffer = Vec::new();
    if let Some(value) = dictionary.decode(bytes, &mut buffer) {
        assert!(value.len() <= VALUE_LEN_MAX);
        assert_eq!(dictionary.decoded_len(bytes), Some(value.len()));
    }
    let mut stored = Vec::new();
    if dictionary.encode(bytes, &mut stored) {
        assert!(stored.len() < bytes.len());
        assert_eq!(dictionary.decode(&stored, &mut buffer), Some(bytes));
    } else {
        assert!(stored.is_empty());
    }
    let shape = SHAPES.get(choice >> 1 & 3).expect("four shapes");
    let (mut key, mut stored) = (Vec::new(), Vec::new());
    if shape.decode(bytes, &mut key) {
        assert!(shape.encode(&key, &mut stored) && shape.is_form_of(bytes, &key));
        assert_eq!(stored, bytes);
    }
    key.clear();
    stored.clear();
    if let Some(number) = SHAPES.encode(bytes, &mut stored) {
        assert!(SHAPES.get(number).expect("its number").decode(&stored, &mut key));
        assert_eq!(key, bytes);
    }
}
