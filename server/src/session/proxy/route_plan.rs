//! Decides which servers a routed request goes to, in which order, and which answer counts.

use crate::options::{ReplicaRead, ReplicaWrite};
use crate::proxy::{PoolRoute, ProxyState, ServerPlace, has_moved};
use todana_core::{Operation, Store, StoreMode};

/// The result of a request to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A read found the record.
    Hit,
    /// A read did not find the record.
    Miss,
    /// A write took effect.
    Success,
    /// The condition of a write did not hold, or the request cannot be executed.
    Failure,
    /// The server failed.
    Error,
}

/// The content of a request to one server, in relation to the client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The client's request. The time to live of its record may be limited.
    Same { ttl_max_s: Option<u32> },
    /// The client's arithmetic, for servers that cannot create the number with the same request.
    WithoutInitial,
    /// Adds the number that the client's arithmetic creates.
    InitialNumber,
    /// Stores the client's value always.
    SetValue,
    /// Removes the record.
    Delete,
    /// Reads the record.
    Read,
    /// Adds the record that this question has found. It keeps its time to live, if that is known,
    /// or gets this one. `needs_time` forbids the question if the time is not known.
    AddFound { question: usize, ttl_s: Option<u32>, needs_time: bool },
}

impl Question {
    const SAME: Question = Question::Same { ttl_max_s: None };
}

/// The next step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlanStep {
    /// Sends these questions, and waits for their answers.
    Ask(Vec<(ServerPlace, Question)>),
    /// Waits for more answers.
    Wait,
    /// Answers the client with the answer to this question. Sends the other questions, whose
    /// answers nobody waits for.
    Answer(usize, Vec<(ServerPlace, Question)>),
}

/// The way of a request to its servers.
#[derive(Debug)]
pub(super) enum RoutePlan {
    /// One server after another, until one has answered.
    InTurn { places: Vec<ServerPlace>, on_miss: bool, repairs: bool, later_ttl_s: Option<u32> },
    /// All servers at once.
    AtOnce { places: Vec<ServerPlace>, choice: AnswerChoice },
    /// The first server, and then the others. With `awaits`, their errors count.
    FirstThen { places: Vec<ServerPlace>, question: Question, needs_success: bool, awaits: bool },
    /// A read of a new server that is filled from an old one.
    WarmRead { new: ServerPlace, old: ServerPlace, ttl_s: Option<u32>, asks_again: bool },
    /// A write whose effect depends on the record: the record is moved to the new server first.
    WarmWrite { new: ServerPlace, old: ServerPlace, ttl_s: Option<u32> },
    /// A delete of both copies of a record.
    DeleteBoth { current: ServerPlace, other: ServerPlace },
}

/// The answer of several that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerChoice {
    /// The first hit, or else the first server's answer.
    FirstHit,
    /// The value that more than half of the servers have, or else the first server's answer.
    MajorityValue,
    /// The worst answer.
    Worst,
    /// An error, or else a success, or else the first server's answer.
    ErrorOrSuccess,
    /// The first server's answer.
    First,
    /// The answer that more than half of the servers give, or else the worst.
    Majority,
    /// The first success, or else the first server's answer.
    AnySuccess,
}

/// The answers as far as they have arrived. A question without an answer has no outcome.
pub(super) trait Answers {
    /// Returns the number of questions.
    fn len(&self) -> usize;
    /// Returns the outcome of a question, if its answer has arrived.
    fn outcome(&self, question: usize) -> Option<Outcome>;
    /// Returns true if the answers to two questions have the same value.
    fn have_same_value(&self, a: usize, b: usize) -> bool;
}

impl RoutePlan {
    /// Returns the plan of a request. `now_ms` is the Unix time, `number` is different for each
    /// request.
    pub(super) fn new(
        route: &PoolRoute,
        state: &ProxyState,
        operation: &Operation<'_>,
        key: &[u8],
        now_ms: u64,
        number: usize,
    ) -> RoutePlan {
        let place = |pool| state.place_of(pool, key);
        let is_read = matches!(operation, Operation::Get(_) | Operation::Inspect(_));
        match route {
            PoolRoute::Refuse | PoolRoute::Null => RoutePlan::single(Vec::new()),
            PoolRoute::Pool(pool) => RoutePlan::single(vec![place(*pool)]),
            PoolRoute::Failover { pools, on_miss, ttl_s } => RoutePlan::InTurn {
                places: distinct(state, pools.iter().map(|pool| place(*pool))),
                on_miss: *on_miss && is_read,
                repairs: false,
                later_ttl_s: Some(*ttl_s),
            },
            PoolRoute::Replicate { pools, copies, read, write, on_miss, repairs } => {
                let places = match pools[..] {
                    [pool] => state.places_of(pool, key, *copies),
                    _ => distinct(state, pools.iter().map(|pool| place(*pool))),
                };
                if is_read {
                    replicated_read(places, state, operation, (*read, *on_miss, *repairs), number)
                } else {
                    replicated_write(places, operation, *write)
                }
            }
            // A key that keeps its server when a pool grows is not moved.
            PoolRoute::WarmUp { new, old, .. } | PoolRoute::Migrate { new, old, .. }
                if state.is_same_server(place(*new), place(*old)) =>
            {
                RoutePlan::single(vec![place(*new)])
            }
            PoolRoute::WarmUp { new, old, ttl_s } => moved(place(*new), place(*old), *ttl_s, operation),
            PoolRoute::Migrate { new, old, start_ms, over } => {
                if has_moved(key, now_ms, *start_ms, *over) {
                    return moved(place(*new), place(*old), None, operation);
                }
                let (current, other) = (place(*old), place(*new));
                match operation {
                    _ if is_read => RoutePlan::single(vec![current]),
                    Operation::Delete(_) => RoutePlan::DeleteBoth { current, other },
                    _ => write_and_delete(current, other),
                }
            }
        }
    }

    fn single(places: Vec<ServerPlace>) -> RoutePlan {
        RoutePlan::InTurn { places, on_miss: false, repairs: false, later_ttl_s: None }
    }

    /// Returns true if records that were found are added to other servers.
    pub(super) fn repairs(&self) -> bool {
        matches!(self, RoutePlan::InTurn { repairs: true, .. })
    }

    /// Returns true if all questions are asked at the beginning.
    pub(super) fn has_one_step(&self) -> bool {
        match self {
            RoutePlan::InTurn { places, .. } => places.len() == 1,
            RoutePlan::AtOnce { .. } => true,
            _ => false,
        }
    }

    /// Returns the next step. It is called at the beginning, and after each answer.
    pub(super) fn step(&self, answers: &impl Answers) -> PlanStep {
        let asked = answers.len();
        let outcome = |question| if question < asked { answers.outcome(question) } else { None };
        let count = asked.checked_sub(1);
        let last = count.and_then(outcome);
        if count.is_some() && last.is_none() && !matches!(self, RoutePlan::AtOnce { .. }) {
            return PlanStep::Wait;
        }
        match self {
            RoutePlan::InTurn { places, on_miss, repairs, later_ttl_s } => {
                let continues = match last {
                    None => true,
                    Some(Outcome::Error) => true,
                    Some(Outcome::Miss) => *on_miss,
                    Some(_) => false,
                };
                if let Some(place) = places.get(asked).filter(|_| continues) {
                    let ttl_max_s = later_ttl_s.filter(|_| asked > 0);
                    return PlanStep::Ask(vec![(*place, Question::Same { ttl_max_s })]);
                }
                let found = |wanted| (0..asked).find(|question| outcome(*question) == Some(wanted));
                let chosen = (0..asked)
                    .find(|question| {
                        !matches!(outcome(*question), Some(Outcome::Miss | Outcome::Error) | None)
                    })
                    .or_else(|| found(Outcome::Miss))
                    .unwrap_or(0);
                let mut after = Vec::new();
                if *repairs && outcome(chosen) == Some(Outcome::Hit) {
                    let missed = (0..chosen).filter(|question| outcome(*question) == Some(Outcome::Miss));
                    let add = Question::AddFound { question: chosen, ttl_s: None, needs_time: true };
                    after.extend(missed.map(|question| (places[question], add)));
                }
                PlanStep::Answer(chosen, after)
            }
            RoutePlan::AtOnce { places, choice } => {
                if asked == 0 {
                    return PlanStep::Ask(places.iter().map(|place| (*place, Question::SAME)).collect());
                }
                let outcomes: Vec<Option<Outcome>> = (0..asked).map(outcome).collect();
                match choice.of(&outcomes, answers) {
                    Some(question) => PlanStep::Answer(question, Vec::new()),
                    None => PlanStep::Wait,
                }
            }
            RoutePlan::FirstThen { places, question, needs_success, awaits } => match (asked, last) {
                (0, _) => PlanStep::Ask(vec![(places[0], Question::SAME)]),
                (1, Some(Outcome::Error)) => PlanStep::Answer(0, Vec::new()),
                (1, _) if *needs_success && last != Some(Outcome::Success) => PlanStep::Answer(0, Vec::new()),
                (1, _) => {
                    let others: Vec<_> = places[1..].iter().map(|place| (*place, *question)).collect();
                    match *awaits && !others.is_empty() {
                        true => PlanStep::Ask(others),
                        false => PlanStep::Answer(0, others),
                    }
                }
                _ if (1..asked).any(|question| outcome(question).is_none()) => PlanStep::Wait,
                _ => {
                    let failed = (1..asked).find(|question| outcome(*question) == Some(Outcome::Error));
                    PlanStep::Answer(failed.unwrap_or(0), Vec::new())
                }
            },
            RoutePlan::WarmRead { new, old, ttl_s, asks_again } => match (asked, last) {
                (0, _) => PlanStep::Ask(vec![(*new, Question::SAME)]),
                (1, Some(Outcome::Miss | Outcome::Error)) => PlanStep::Ask(vec![(*old, Question::Read)]),
                (1, _) => PlanStep::Answer(0, Vec::new()),
                (2, Some(Outcome::Hit)) => {
                    let add = (*new, Question::AddFound { question: 1, ttl_s: *ttl_s, needs_time: false });
                    match (outcome(0), asks_again) {
                        // A server that fails is not asked a second time.
                        (Some(Outcome::Error), _) => PlanStep::Answer(1, Vec::new()),
                        (_, true) => PlanStep::Ask(vec![add, (*new, Question::SAME)]),
                        (_, false) => PlanStep::Answer(1, vec![add]),
                    }
                }
                // The old server may have the record, so its failure is no miss.
                (2, Some(Outcome::Error)) => PlanStep::Answer(1, Vec::new()),
                (2, _) => PlanStep::Answer(0, Vec::new()),
                _ => PlanStep::Answer(3, Vec::new()),
            },
            RoutePlan::WarmWrite { new, old, ttl_s } => match (asked, last) {
                (0, _) => PlanStep::Ask(vec![(*old, Question::Read)]),
                (1, found) => {
                    let add = (*new, Question::AddFound { question: 0, ttl_s: *ttl_s, needs_time: false });
                    let add = Some(add).filter(|_| found == Some(Outcome::Hit));
                    PlanStep::Ask(add.into_iter().chain([(*new, Question::SAME)]).collect())
                }
                (_, Some(Outcome::Failure)) if outcome(0) == Some(Outcome::Error) => {
                    PlanStep::Answer(0, Vec::new())
                }
                (_, Some(Outcome::Error)) => PlanStep::Answer(asked - 1, Vec::new()),
                _ => PlanStep::Answer(asked - 1, vec![(*old, Question::Delete)]),
            },
            RoutePlan::DeleteBoth { current, other } => match asked {
                0 => PlanStep::Ask(vec![(*other, Question::Delete), (*current, Question::SAME)]),
                _ => match (outcome(0), outcome(1)) {
                    (None, _) | (_, None) => PlanStep::Wait,
                    // The record may still be there.
                    (Some(Outcome::Error), _) => PlanStep::Answer(0, Vec::new()),
                    (Some(Outcome::Success), Some(Outcome::Failure)) => PlanStep::Answer(0, Vec::new()),
                    _ => PlanStep::Answer(1, Vec::new()),
                },
            },
        }
    }
}

impl AnswerChoice {
    /// Returns the question whose answer counts, or `None` if it is not known yet.
    fn of(self, outcomes: &[Option<Outcome>], answers: &impl Answers) -> Option<usize> {
        let all: Option<Vec<Outcome>> = outcomes.iter().copied().collect();
        let find = |wanted| outcomes.iter().position(|outcome| *outcome == Some(wanted));
        let half = outcomes.len() / 2;
        match self {
            AnswerChoice::First => outcomes[0].map(|_| 0),
            AnswerChoice::FirstHit => {
                find(Outcome::Hit).or_else(|| all.map(|_| find(Outcome::Miss).unwrap_or(0)))
            }
            AnswerChoice::AnySuccess => find(Outcome::Success).or_else(|| all.map(|_| 0)),
            AnswerChoice::Worst => all.map(|all| worst(&all)),
            AnswerChoice::ErrorOrSuccess => {
                all.map(|_| find(Outcome::Error).or_else(|| find(Outcome::Success)).unwrap_or(0))
            }
            AnswerChoice::Majority => {
                let agrees = |outcome: &Option<Outcome>| {
                    outcome.is_some() && outcomes.iter().filter(|other| *other == outcome).count() > half
                };
                outcomes.iter().position(agrees).or_else(|| all.map(|all| worst(&all)))
            }
            AnswerChoice::MajorityValue => {
                let all = all?;
                let same = |a: usize, b: usize| {
                    all[a] == all[b] && (all[a] != Outcome::Hit || answers.have_same_value(a, b))
                };
                let agrees = |a: &usize| (0..all.len()).filter(|b| same(*a, *b)).count() > half;
                let usable = all.iter().position(|outcome| *outcome != Outcome::Error);
                Some((0..all.len()).find(agrees).or(usable).unwrap_or(0))
            }
        }
    }
}

/// Returns the position of an error, or else of a failure, or else 0.
fn worst(outcomes: &[Outcome]) -> usize {
    let find = |wanted| outcomes.iter().position(|outcome| *outcome == wanted);
    find(Outcome::Error).or_else(|| find(Outcome::Failure)).unwrap_or(0)
}

/// Returns the places without those whose server has an earlier place, in another pool. A record
/// that is deleted at one of them is gone from the other.
fn distinct(state: &ProxyState, places: impl Iterator<Item = ServerPlace>) -> Vec<ServerPlace> {
    let mut distinct: Vec<ServerPlace> = Vec::new();
    for place in places {
        if !distinct.iter().any(|earlier| state.is_same_server(*earlier, place)) {
            distinct.push(place);
        }
    }
    distinct
}

fn replicated_read(
    mut places: Vec<ServerPlace>,
    state: &ProxyState,
    operation: &Operation<'_>,
    (read, on_miss, repairs): (ReplicaRead, bool, bool),
    number: usize,
) -> RoutePlan {
    // The versions of the copies differ, and a later write with a version goes to the first one.
    let needs_first = matches!(operation, Operation::Get(get) if get.needs.version || get.vivify.is_some());
    match read {
        _ if needs_first => {}
        ReplicaRead::First => {}
        ReplicaRead::Nearest => places.sort_by_key(|place| !state.is_near(*place)),
        ReplicaRead::Random => {
            let len = places.len();
            places.rotate_left(number % len);
        }
        ReplicaRead::Fastest => return RoutePlan::AtOnce { places, choice: AnswerChoice::FirstHit },
        ReplicaRead::Majority => {
            return RoutePlan::AtOnce { places, choice: AnswerChoice::MajorityValue };
        }
    }
    RoutePlan::InTurn { places, on_miss, repairs, later_ttl_s: None }
}

fn replicated_write(places: Vec<ServerPlace>, operation: &Operation<'_>, write: ReplicaWrite) -> RoutePlan {
    // With `write = "all"`, a read of any copy after the reply must not find the former value.
    let awaits = write == ReplicaWrite::All;
    let first_then =
        |places, question, needs_success| RoutePlan::FirstThen { places, question, needs_success, awaits };
    match operation {
        // The versions of the copies differ.
        Operation::Store(store) if store.compare.is_some() && store.mode == StoreMode::Set => {
            first_then(places, Question::SetValue, true)
        }
        // Another copy could store what the first one refuses.
        Operation::Store(Store { mode: StoreMode::Add | StoreMode::Replace, compare: None, .. })
            if matches!(write, ReplicaWrite::All | ReplicaWrite::First) =>
        {
            first_then(places, Question::SetValue, true)
        }
        // The copies may differ, so the same change may have different results.
        Operation::Store(store)
            if store.compare.is_some() || matches!(store.mode, StoreMode::Append | StoreMode::Prepend) =>
        {
            first_then(places, Question::Delete, false)
        }
        Operation::Arithmetic(_) | Operation::Modify(_) => first_then(places, Question::Delete, false),
        Operation::Delete(delete) if delete.compare.is_some() => first_then(places, Question::Delete, true),
        _ => {
            // A copy without the record is as good as one that has just lost it, and needs no time.
            let needs_one = matches!(operation, Operation::Delete(_) | Operation::Touch(_));
            let choice = match write {
                ReplicaWrite::All if needs_one => AnswerChoice::ErrorOrSuccess,
                ReplicaWrite::All => AnswerChoice::Worst,
                ReplicaWrite::First => AnswerChoice::First,
                ReplicaWrite::Majority => AnswerChoice::Majority,
                ReplicaWrite::Any => AnswerChoice::AnySuccess,
            };
            RoutePlan::AtOnce { places, choice }
        }
    }
}

/// Returns the plan of a request for a record that belongs to a new server and may still be at an
/// old one only.
fn moved(new: ServerPlace, old: ServerPlace, ttl_s: Option<u32>, operation: &Operation<'_>) -> RoutePlan {
    match operation {
        Operation::Get(get) => {
            let asks_again = get.needs.version
                || get.needs.access
                || get.touch.is_some()
                || get.vivify.is_some()
                || get.recache_below_s.is_some();
            RoutePlan::WarmRead { new, old, ttl_s, asks_again }
        }
        Operation::Inspect(_) => RoutePlan::WarmRead { new, old, ttl_s, asks_again: true },
        Operation::Store(store)
            if store.mode == StoreMode::Set && store.compare.is_none() && !store.stale_if_older =>
        {
            write_and_delete(new, old)
        }
        Operation::Delete(delete) if delete.compare.is_none() && !delete.mark_stale && !delete.drop_value => {
            RoutePlan::DeleteBoth { current: new, other: old }
        }
        _ => RoutePlan::WarmWrite { new, old, ttl_s },
    }
}

/// Returns the plan of a write to one server that must not leave an older record at another.
fn write_and_delete(current: ServerPlace, other: ServerPlace) -> RoutePlan {
    let (places, question) = (vec![current, other], Question::Delete);
    RoutePlan::FirstThen { places, question, needs_success: false, awaits: false }
}
