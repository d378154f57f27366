//! Trains a dictionary of tokens.
//!
//! ```text
//! round = encode the sample, count tokens and pairs of tokens
//!         -> drop tokens that save nothing, add the pairs that would save most
//! ```
//!
//! A token that is among the most frequent ones costs one byte, any other two. So a pair of tokens
//! becomes a token only if it saves bytes: two frequent tokens that are rarely neighbours stay two.
//!
//! Cost: see the figures of docs/engines.md. The result depends only on the sample.

use super::hex_run::{HEX_LEN_MAX, next_run};
use super::matcher::TokenMatcher;
use super::tokens::{TOKEN_LEN_MAX, TokenDictionary, TokenSpan, TokenText, short_codes};
use rapidhash::RapidHashMap;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::ops::Range;

/// The number of rounds.
const ROUNDS: usize = 14;
/// In this number of first rounds, only a part of the sample is encoded, and a pair becomes a token
/// only if the token will have a code of one byte.
const EARLY_ROUNDS: usize = 6;
/// The early rounds encode one of this number of groups of pieces.
const EARLY_ONE_IN: usize = 4;
/// The number of successive pieces of which all or none are encoded.
const NEIGHBOURS: usize = 16;
/// The number of tokens that are expected to have a code of one byte.
const SHORT_CODES_EXPECTED: usize = 240;
/// The maximum number of tokens that an early round adds.
const ADDED_EARLY: usize = 240;
/// The maximum number of tokens that a later round adds.
const ADDED_LATER: usize = 2048;
/// The maximum number of tokens of a dictionary.
const TOKENS_WANTED_MAX: usize = 8 << 10;
/// If there are this many different pairs, those that have occurred once are forgotten, so that a
/// diverse sample takes only a few MiB.
const PAIRS_MAX: usize = 1 << 17;
/// A token must occur this often in the sample.
const COUNT_MIN: u32 = 4;
/// The maximum number of different lengths of hexadecimal runs that become tokens.
const HEX_TOKENS_MAX: usize = 8;
/// A length becomes a token if such runs make up at least one of this number of bytes.
const HEX_ONE_IN: usize = 100;

type PairCounts = RapidHashMap<u32, u32>;

/// A token during training.
struct CountedToken {
    text: Box<[u8]>,
    count: u32,
}

/// A run of hexadecimal digits that becomes a token.
struct CountedHexRun {
    digits: usize,
    count: u32,
}

/// The tokens of a round.
struct TokenRound {
    tokens: Vec<CountedToken>,
    texts: Vec<u8>,
    matcher: TokenMatcher,
    pairs: PairCounts,
    /// A token with at least this count has a code of one byte.
    short_count_min: u32,
}

/// The training of a dictionary, in steps of some tens of milliseconds.
pub(super) struct TokenTraining {
    /// The texts between runs of hexadecimal digits, as ranges of the sample.
    pieces: Vec<Range<usize>>,
    runs: Vec<CountedHexRun>,
    tokens: Vec<CountedToken>,
    /// The number of rounds that are done.
    rounds: usize,
}

impl TokenTraining {
    /// Begins to train on values, which are ranges of the sample.
    pub(super) fn new(sample: &[u8], values: &[Range<usize>]) -> TokenTraining {
        let runs = frequent_hex_runs(sample, values);
        let pieces = divide(sample, values, &runs);
        let tokens = (0..=u8::MAX).map(|byte| CountedToken { text: [byte].into(), count: 0 }).collect();
        TokenTraining { pieces, runs, tokens, rounds: 0 }
    }

    /// Does a step of the training. `sample` must be the same each time. Returns the dictionary at
    /// the end. If the values are few or diverse, its tokens are little more than single bytes.
    pub(super) fn step(&mut self, sample: &[u8]) -> Option<TokenDictionary> {
        let is_early = self.rounds < EARLY_ROUNDS;
        let mut counted = TokenRound::new(std::mem::take(&mut self.tokens));
        counted.count(sample, &self.pieces, if is_early { EARLY_ONE_IN } else { 1 });
        self.rounds += 1;
        if self.rounds == EARLY_ROUNDS && counted.is_hopeless() {
            return Some(counted.into_dictionary(&self.runs));
        }
        if self.rounds <= ROUNDS {
            let added = if self.rounds < ROUNDS {
                counted.best_pairs(if is_early { ADDED_EARLY } else { ADDED_LATER }, is_early)
            } else {
                Vec::new()
            };
            self.tokens = counted.into_useful();
            self.tokens.extend(added);
        } else if self.rounds == ROUNDS + 1 {
            self.tokens = counted.into_worthwhile(self.runs.len());
        } else {
            return Some(counted.into_dictionary(&self.runs));
        }
        None
    }
}

/// Returns the runs of hexadecimal digits that deserve a token.
fn frequent_hex_runs(sample: &[u8], values: &[Range<usize>]) -> Vec<CountedHexRun> {
    let mut counts = [0u32; HEX_LEN_MAX + 1];
    for value in values {
        let mut from = 0;
        while let Some(run) = next_run(&sample[value.clone()], from) {
            counts[run.len()] += 1;
            from = run.end;
        }
    }
    let total: usize = values.iter().map(|value| value.len()).sum();
    let runs = counts.iter().enumerate().map(|(digits, &count)| CountedHexRun { digits, count });
    let mut runs: Vec<CountedHexRun> = runs
        .filter(|run| run.count >= COUNT_MIN && run.count as usize * run.digits >= total / HEX_ONE_IN)
        .collect();
    runs.sort_by_key(|run| Reverse(run.count as usize * run.digits));
    runs.truncate(HEX_TOKENS_MAX);
    runs
}

/// Returns the texts between the runs that become tokens.
fn divide(sample: &[u8], values: &[Range<usize>], runs: &[CountedHexRun]) -> Vec<Range<usize>> {
    if runs.is_empty() {
        return values.to_vec();
    }
    let mut pieces = Vec::new();
    for value in values {
        let (mut from, mut searched) = (value.start, 0);
        while let Some(run) = next_run(&sample[value.clone()], searched) {
            searched = run.end;
            if runs.iter().any(|token| token.digits == run.len()) {
                pieces.push(from..value.start + run.start);
                from = value.start + run.end;
            }
        }
        pieces.push(from..value.end);
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

impl TokenRound {
    fn new(mut tokens: Vec<CountedToken>) -> TokenRound {
        // The matcher keeps the first tokens of a prefix, which should be the frequent ones.
        tokens.sort_by_key(|token| Reverse(token.count));
        let (mut texts, mut spans) = (Vec::new(), Vec::new());
        for (number, token) in tokens.iter_mut().enumerate() {
            let span = TokenSpan::plain(texts.len() as u32, token.text.len() as u16);
            spans.push((number as u16, span));
            texts.extend_from_slice(&token.text);
            token.count = 0;
        }
        let matcher = TokenMatcher::new(&texts, spans.into_iter());
        TokenRound { tokens, texts, matcher, pairs: PairCounts::default(), short_count_min: 1 }
    }

    /// Returns true if the sample takes hardly less space with these tokens. Later rounds would not
    /// change much.
    fn is_hopeless(&self) -> bool {
        let lens = self.tokens.iter().map(|token| token.text.len() as u64 * u64::from(token.count));
        let costs =
            self.tokens.iter().map(|token| u64::from(self.cost(token.count)) * u64::from(token.count));
        costs.sum::<u64>() >= lens.sum::<u64>() / 100 * 95
    }

    /// Encodes one of `one_in` groups of pieces, and counts tokens and pairs.
    fn count(&mut self, sample: &[u8], pieces: &[Range<usize>], one_in: usize) {
        let mut pairs_max = PAIRS_MAX;
        // Groups keep the pieces of a value together.
        for piece in pieces.chunks(NEIGHBOURS).step_by(one_in).flatten() {
            let piece = &sample[piece.clone()];
            let (mut at, mut previous) = (0, None);
            while at < piece.len() {
                let (token, len) = self.matcher.longest_at(&self.texts, piece, at);
                self.tokens[usize::from(token)].count += 1;
                if let Some(previous) = previous {
                    *self.pairs.entry(u32::from(previous) << 16 | u32::from(token)).or_default() += 1;
                }
                previous = Some(token);
                at += len;
            }
            if self.pairs.len() >= pairs_max {
                self.pairs.retain(|_, count| *count > 1);
                // Nearly all pairs may have occurred twice. Then little was freed, so the limit
                // rises.
                pairs_max = PAIRS_MAX.max(2 * self.pairs.len());
            }
        }
        let mut counts: Vec<u32> = self.tokens.iter().map(|token| token.count).collect();
        counts.sort_unstable_by_key(|&count| Reverse(count));
        self.short_count_min = counts.get(SHORT_CODES_EXPECTED).map_or(1, |&count| count + 1);
    }

    /// Returns the length of a code for a token that occurs this often.
    fn cost(&self, count: u32) -> u32 {
        if count >= self.short_count_min { 1 } else { 2 }
    }

    /// Returns the number of bytes that the text of a token takes without this token.
    fn cost_without(&self, token: &CountedToken) -> u32 {
        let (mut at, mut cost) = (0, 0);
        while at < token.text.len() {
            let (part, len) = self.matcher.longest_below(&self.texts, &token.text, at, token.text.len());
            cost += self.cost(self.tokens[usize::from(part)].count);
            at += len;
        }
        cost
    }

    /// Returns the number of bytes of the sample that a token saves.
    fn gain(&self, token: &CountedToken) -> u64 {
        let saved = self.cost_without(token).saturating_sub(self.cost(token.count));
        u64::from(saved) * u64::from(token.count)
    }

    /// Returns the pairs of tokens that would save most.
    fn best_pairs(&self, pairs_max: usize, only_short: bool) -> Vec<CountedToken> {
        let text = |number: u32| &self.tokens[number as usize].text;
        let cost_of = |number: u32| self.cost(self.tokens[number as usize].count);
        let mut gains: Vec<(u64, u32)> = Vec::new();
        for (&pair, &count) in &self.pairs {
            let (first, second) = (pair >> 16, pair & 0xFFFF);
            let cost = self.cost(count);
            let saved = (cost_of(first) + cost_of(second)).saturating_sub(cost);
            let is_possible = count >= COUNT_MIN
                && saved > 0
                && !(only_short && cost > 1)
                && text(first).len() + text(second).len() <= TOKEN_LEN_MAX;
            if is_possible {
                gains.push((u64::from(saved) * u64::from(count), pair));
            }
        }
        gains.sort_unstable_by_key(|&(gain, pair)| (Reverse(gain), pair));
        let mut known: HashSet<Box<[u8]>> = self.tokens.iter().map(|token| token.text.clone()).collect();
        let mut added = Vec::new();
        let free = TOKENS_WANTED_MAX.saturating_sub(self.tokens.len());
        for (_, pair) in gains {
            if added.len() >= pairs_max.min(free) {
                break;
            }
            let joined: Box<[u8]> = [&text(pair >> 16)[..], &text(pair & 0xFFFF)[..]].concat().into();
            if known.insert(joined.clone()) {
                added.push(CountedToken { text: joined, count: self.pairs[&pair] });
            }
        }
        added
    }

    /// Returns the single bytes and the tokens that save something.
    fn into_useful(self) -> Vec<CountedToken> {
        let useful: Vec<bool> = self
            .tokens
            .iter()
            .map(|token| token.text.len() == 1 || (token.count >= COUNT_MIN && self.gain(token) > 0))
            .collect();
        let mut useful = useful.into_iter();
        self.tokens.into_iter().filter(|_| useful.next() == Some(true)).collect()
    }

    /// Drops tokens as long as that saves more, because another token then has a code of one byte,
    /// than it costs.
    fn into_worthwhile(self, hex_tokens: usize) -> Vec<CountedToken> {
        let mut gains: Vec<u64> = self.tokens.iter().map(|token| self.gain(token)).collect();
        let mut counts: Vec<u32> = self.tokens.iter().map(|token| token.count).collect();
        counts.sort_unstable_by_key(|&count| Reverse(count));
        let mut longer: Vec<usize> =
            (0..self.tokens.len()).filter(|&index| self.tokens[index].text.len() > 1).collect();
        longer.sort_by_key(|&index| Reverse(gains[index]));
        let mut kept = longer.len();
        while kept > 0 {
            let short = short_codes(256 + hex_tokens + kept);
            // The number of longer tokens with which one more code is short.
            let fewer = (255 * (256 - short)).saturating_sub(255 + hex_tokens).min(kept - 1);
            let loss: u64 = longer[fewer..kept].iter().map(|&index| gains[index]).sum();
            if short == 256 || loss > u64::from(counts.get(short).copied().unwrap_or_default()) {
                break;
            }
            kept = fewer;
        }
        longer[kept..].iter().for_each(|&index| gains[index] = 0);
        longer[..kept].iter().for_each(|&index| gains[index] = gains[index].max(1));
        let mut gains = gains.into_iter();
        self.tokens
            .into_iter()
            .filter(|token| gains.next().is_some_and(|gain| gain > 0 || token.text.len() == 1))
            .collect()
    }

    fn into_dictionary(self, runs: &[CountedHexRun]) -> TokenDictionary {
        let plain = self.tokens.iter().map(|token| (token.count, TokenText::Plain(&token.text)));
        let hex = runs.iter().map(|run| (run.count, TokenText::Hex(run.digits)));
        let mut tokens: Vec<(u32, TokenText<'_>)> = plain.chain(hex).collect();
        tokens.sort_by_key(|&(count, _)| Reverse(count));
        let tokens: Vec<TokenText<'_>> = tokens.into_iter().map(|(_, token)| token).collect();
        TokenDictionary::new(&tokens)
    }
}
