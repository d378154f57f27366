//! Carries out a request that needs more than its own bytes at one server: a route over several
//! servers, or a server that speaks another dialect than the client.

use super::client_request::ClientRequest;
use super::route_plan::{Answers, Outcome, PlanStep, Question, RoutePlan};
use crate::options::WhenDown;
use crate::proxy::{
    NearCache, NearFill, ProxyCount, ProxyState, ProxyWorker, ReplyDelivery, RequestTag, SendRefusal,
    ServerPlace,
};
use std::sync::Arc;
use todana_client::pool::ReplyKind;
use todana_client::ring::VbucketMap;
use todana_core::{
    Arithmetic, ArithmeticReply, Delete, Expiry, Get, HitReply, Operation, RecacheState, RefusalReason,
    Reply, Store, StoreMode, Ttl, UnixSeconds,
};
use todana_protocol::memcached::client::{
    AskedReply, NotSpoken, RecordFields, ServerDialect, ServerReply, TimeLeft, decode_reply_of,
    put_operation_for, refuses_vbucket,
};
use todana_protocol::memcached::{ReplyForm, encode};
use xxhash_rust::xxh3::xxh3_64;

/// The longest time to live that memcached does not take for a Unix time.
const SPAN_MAX_S: u32 = 60 * 60 * 24 * 30;
/// The longest value that is kept until it is complete, because several servers hold it, or because
/// its server speaks another dialect than the client.
pub(super) const KEPT_VALUE_MAX: usize = 16 << 20;
/// The replies to requests that a server does not know.
const NOT_SPOKEN: &str = "CLIENT_ERROR not spoken by the server";
const TOO_LONG: &str = "SERVER_ERROR value too long for its route";
const NOT_A_KEY: &str = "CLIENT_ERROR the server takes no such key";

/// A routed request.
pub(super) struct RouteRun {
    request: ClientRequest,
    /// The pools to which the plan refers.
    state: Arc<ProxyState>,
    plan: RoutePlan,
    /// The limit of the route on times to live.
    ttl_max_s: Option<u32>,
    near: Option<NearUse>,
    questions: Vec<AskedQuestion>,
    key_hash: u64,
}

/// The use that a request makes of the cache of its route.
pub(super) enum NearUse {
    /// The record that it reads is kept.
    Fill { cache: Arc<NearCache>, fill: NearFill },
    /// It changes the record. The value has a use only when it is dropped, which ends the write.
    Write(#[expect(dead_code)] NearWrite),
}

/// A write that has not ended.
pub(super) struct NearWrite {
    cache: Arc<NearCache>,
    key: Box<[u8]>,
}

impl NearUse {
    /// Begins a write.
    pub(super) fn write(cache: Arc<NearCache>, key: &[u8]) -> NearUse {
        cache.begin_write(key);
        NearUse::Write(NearWrite { cache, key: key.into() })
    }
}

impl Drop for NearWrite {
    fn drop(&mut self) {
        self.cache.end_write(&self.key);
    }
}

/// A request to one server.
#[derive(Debug)]
struct AskedQuestion {
    place: ServerPlace,
    question: Question,
    /// True if an arithmetic has been tried without its initial number.
    was_tried: bool,
    /// The number of times that another server is asked if this one refuses the vbucket of the key.
    vbucket_tries: usize,
    state: QuestionState,
}

#[derive(Debug)]
enum QuestionState {
    /// The dialect of the server is not known yet.
    Unsent,
    Sent {
        asked: AskedReply,
        reply: Vec<u8>,
    },
    Answered {
        asked: AskedReply,
        reply: Vec<u8>,
        outcome: Outcome,
    },
    /// The number that a record was created with.
    Created(u64),
    /// The server does not know such a request.
    NotSpoken(&'static str),
    Lost {
        label: String,
        reason: &'static str,
        when_down: WhenDown,
    },
}

/// The records that a request is about, for which it may have to wait.
#[derive(Clone, Copy)]
pub(super) enum HeldScope<'k> {
    /// The record with this key.
    Key { key: &'k [u8], hash: u64 },
    /// All records.
    All,
}

impl<'k> HeldScope<'k> {
    pub(super) fn of_key(key: &'k [u8]) -> HeldScope<'k> {
        HeldScope::Key { key, hash: xxh3_64(key) }
    }
}

/// The reply to a routed request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RoutedReply {
    pub(super) bytes: Vec<u8>,
    pub(super) is_error: bool,
}

impl RouteRun {
    pub(super) fn new(
        state: Arc<ProxyState>,
        request: ClientRequest,
        plan: RoutePlan,
        ttl_max_s: Option<u32>,
        near: Option<NearUse>,
        key: &[u8],
    ) -> RouteRun {
        let key_hash = xxh3_64(key);
        RouteRun { request, state, plan, ttl_max_s, near, questions: Vec::new(), key_hash }
    }

    /// Returns true if the run has this key, and will ask a server later. A run that has sent all
    /// its questions cannot be overtaken, because servers answer in order.
    pub(super) fn holds(&self, scope: HeldScope<'_>) -> bool {
        // To decode the request again takes too long for each of many waiting requests.
        if let HeldScope::Key { hash, .. } = scope
            && hash != self.key_hash
        {
            return false;
        }
        let has_sent_all = self.plan.has_one_step()
            && self.questions.iter().all(|asked| {
                !matches!(asked.state, QuestionState::Unsent)
                    && matches!(asked.question, Question::Same { .. })
                    && asked.vbucket_tries == 0
            });
        let is_meant = |operation: &Operation<'_>| match scope {
            HeldScope::Key { key, .. } => operation.key() == Some(key),
            HeldScope::All => true,
        };
        !has_sent_all && self.request.with(|operation, _| is_meant(operation)) == Some(true)
    }

    /// Notes what arrives for a question. Returns the number of bytes that are kept, and true if
    /// [`advance`](Self::advance) must be called.
    pub(super) fn receive(&mut self, number: u32, delivery: ReplyDelivery<'_>) -> (usize, bool) {
        let Some(asked) = self.questions.get_mut(number as usize) else { return (0, false) };
        let mut kept = 0;
        match (&mut asked.state, delivery) {
            (QuestionState::Sent { asked: form, reply }, ReplyDelivery::Part(part)) => {
                if reply.len() + part.bytes.len() + part.missing > KEPT_VALUE_MAX {
                    asked.state = QuestionState::NotSpoken(TOO_LONG);
                    return (0, true);
                }
                reply.extend_from_slice(part.bytes);
                kept = part.bytes.len();
                if !part.is_last {
                    return (kept, false);
                }
                let (form, reply) = (*form, std::mem::take(reply));
                let outcome = outcome_of(form, &reply);
                asked.state = QuestionState::Answered { asked: form, reply, outcome };
            }
            (QuestionState::Unsent, ReplyDelivery::DialectKnown) => {}
            (
                QuestionState::Sent { .. } | QuestionState::Unsent,
                ReplyDelivery::Lost { label, reason, when_down },
            ) => asked.state = QuestionState::Lost { label: label.into(), reason, when_down },
            _ => return (0, false),
        }
        (kept, true)
    }

    /// Sends what can be sent now. Returns the reply to the client once it is known. `tag` is the
    /// tag of the first question.
    pub(super) fn advance(&mut self, proxy: &mut ProxyWorker, tag: RequestTag) -> Option<RoutedReply> {
        for number in 0..self.questions.len() {
            self.try_next_server(number);
            self.try_arithmetic_again(number);
            self.send(proxy, number, tag);
        }
        loop {
            match self.plan.step(&*self) {
                PlanStep::Wait => return None,
                PlanStep::Ask(new) => {
                    for (place, question) in new {
                        let (was_tried, state) = (false, QuestionState::Unsent);
                        let vbucket_tries = self.vbucket_tries(place);
                        self.questions.push(AskedQuestion {
                            place,
                            question,
                            was_tried,
                            vbucket_tries,
                            state,
                        });
                        self.send(proxy, self.questions.len() - 1, tag);
                    }
                }
                PlanStep::Answer(number, after) => {
                    for (place, question) in after {
                        self.send_unowned(proxy, tag.session, place, question);
                    }
                    self.fill_near(proxy, number);
                    if self.was_found_in_old() {
                        proxy.count(ProxyCount::WarmupHits, 1);
                    }
                    return Some(self.reply(number));
                }
            }
        }
    }

    /// Returns true if a record was found only in the old pool of its route.
    fn was_found_in_old(&self) -> bool {
        matches!(self.plan, RoutePlan::WarmRead { .. })
            && self.questions.len() > 1
            && self.outcome(1) == Some(Outcome::Hit)
    }

    /// Keeps the record that was found in the cache of the route. A reply that also says whether to
    /// recompute the value is for one client only.
    fn fill_near(&self, proxy: &ProxyWorker, number: usize) {
        if let Some(NearUse::Fill { cache, fill }) = &self.near
            && let Some((hit, _)) = self.hit(number).filter(|(hit, _)| hit.recache == RecacheState::default())
        {
            let found = |operation: &Operation<'_>, _: &ReplyForm<'_>| {
                cache.fill(operation.key().unwrap_or_default(), *fill, proxy.now(), &hit.record);
            };
            self.request.with(found);
        }
    }

    /// A server without arithmetic that creates numbers needs several requests: the arithmetic, an
    /// add if there is no record, and the arithmetic again if another client was faster.
    fn try_arithmetic_again(&mut self, number: usize) {
        let asked = &mut self.questions[number];
        let QuestionState::Answered { outcome, .. } = asked.state else { return };
        match (asked.question, outcome) {
            (Question::WithoutInitial, Outcome::Failure) if !asked.was_tried => {
                asked.question = Question::InitialNumber;
                asked.was_tried = true;
                asked.state = QuestionState::Unsent;
            }
            (Question::InitialNumber, Outcome::Success) => {
                let initial = self.request.with(|operation, _| match operation {
                    Operation::Arithmetic(arithmetic) => arithmetic.initial,
                    _ => 0,
                });
                self.questions[number].state = QuestionState::Created(initial.unwrap_or_default());
            }
            (Question::InitialNumber, Outcome::Failure) => {
                asked.question = Question::WithoutInitial;
                asked.state = QuestionState::Unsent;
            }
            _ => {}
        }
    }

    /// Moves the vbucket of the key to the next server, and the question with it, if its server has
    /// refused the vbucket.
    fn try_next_server(&mut self, number: usize) {
        let AskedQuestion { place, vbucket_tries, ref state, .. } = self.questions[number];
        let QuestionState::Answered { reply, .. } = state else { return };
        if vbucket_tries == 0 || !refuses_vbucket(reply) {
            return;
        }
        let server = self.with_vbucket(place, |map, slot| map.move_slot(slot, place.server));
        let asked = &mut self.questions[number];
        (asked.place.server, asked.vbucket_tries) = (server.unwrap_or(place.server), vbucket_tries - 1);
        asked.state = QuestionState::Unsent;
    }

    /// Returns the number of times that another server is asked if this one refuses the vbucket of
    /// the key.
    fn vbucket_tries(&self, place: ServerPlace) -> usize {
        let tries = self.with_vbucket(place, |map, slot| {
            let count = map.server_count();
            // A server that has a copy must not be replaced by one that has another.
            let can_move = count > 1 && map.server_of_slot(slot) == place.server;
            if can_move { count } else { 0 }
        });
        tries.unwrap_or_default()
    }

    /// Passes the map of vbuckets of a pool, if it has one, and the vbucket of the key to `see`.
    fn with_vbucket<R>(&self, place: ServerPlace, see: impl FnOnce(&VbucketMap, u16) -> R) -> Option<R> {
        let map = self.state.pools[place.pool].vbuckets()?;
        self.request.with(|operation, _| Some(see(map, map.slot_of(operation.key()?)))).flatten()
    }

    /// Sends a question that has not been sent.
    fn send(&mut self, proxy: &mut ProxyWorker, number: usize, tag: RequestTag) {
        let AskedQuestion { place, question, state: QuestionState::Unsent, .. } = self.questions[number]
        else {
            return;
        };
        let tag = RequestTag { question: number as u32, ..tag };
        let dialect = match proxy.dialect_of(&self.state, place, tag) {
            Ok(Some(dialect)) => dialect,
            Ok(None) => return,
            Err(refusal) => {
                self.questions[number].state = self.refused(place, refusal);
                return;
            }
        };
        let mut bytes = Vec::new();
        let mut written = self.put(dialect, place, question, &mut bytes);
        if written == Err(NotSpoken::Steps) && matches!(question, Question::Same { .. }) {
            self.questions[number].question = Question::WithoutInitial;
            written = self.put(dialect, place, Question::WithoutInitial, &mut bytes);
        }
        self.questions[number].state = match written {
            Ok(asked) => {
                let kind = reply_kind(asked);
                let sent = match (&self.near, question) {
                    (Some(NearUse::Fill { cache, fill }), Question::Same { .. }) if cache.coalesces() => {
                        proxy.send_shared(&self.state, place, kind, tag, *fill, &bytes)
                    }
                    _ => proxy.send(&self.state, place, kind, tag, |out| out.extend_from_slice(&bytes)),
                };
                match sent {
                    Ok(()) => QuestionState::Sent { asked, reply: Vec::new() },
                    Err(refusal) => self.refused(place, refusal),
                }
            }
            Err(NotSpoken::Key) => QuestionState::NotSpoken(NOT_A_KEY),
            Err(_) => QuestionState::NotSpoken(NOT_SPOKEN),
        };
    }

    /// Sends a question whose answer nobody waits for.
    fn send_unowned(&self, proxy: &mut ProxyWorker, session: u64, place: ServerPlace, question: Question) {
        let dialect = proxy.known_dialect(&self.state, place).unwrap_or(ServerDialect::Text);
        let mut bytes = Vec::new();
        if let Ok(asked) = self.put(dialect, place, question, &mut bytes) {
            let put = |out: &mut Vec<u8>| out.extend_from_slice(&bytes);
            let _ = proxy.send_unowned(&self.state, place, reply_kind(asked), session, put);
        }
    }

    /// Returns the state of a question that its server does not take.
    fn refused(&self, place: ServerPlace, refusal: SendRefusal) -> QuestionState {
        let when_down = self.state.pools[place.pool].options.when_down;
        let label = self.state.server(place).shown_label().into();
        QuestionState::Lost { label, reason: refusal.as_str(), when_down }
    }

    /// Writes a question in the dialect of its server.
    fn put(
        &self,
        dialect: ServerDialect,
        place: ServerPlace,
        question: Question,
        out: &mut Vec<u8>,
    ) -> Result<AskedReply, NotSpoken> {
        let written = self.request.with(|operation, form| {
            let key = operation.key().unwrap_or_default();
            let shows_time = form.time_left();
            let mut fields = RecordFields::default();
            let mut ttl_max_s = self.ttl_max_s;
            let number;
            let asked = match (question, *operation) {
                (Question::Same { ttl_max_s: own }, operation) => {
                    // The time is also needed to add the record elsewhere.
                    let wanted = if self.plan.repairs() { TimeLeft::After } else { TimeLeft::Unread };
                    let wanted = if dialect == ServerDialect::Meta { wanted } else { TimeLeft::Unread };
                    fields.time_left = match shows_time {
                        TimeLeft::Unread => wanted,
                        _ if dialect != ServerDialect::Meta && self.request.can_lack_time() => wanted,
                        shows_time => shows_time,
                    };
                    ttl_max_s = [ttl_max_s, own].into_iter().flatten().min();
                    operation
                }
                (Question::WithoutInitial, Operation::Arithmetic(arithmetic)) => {
                    Operation::Arithmetic(Arithmetic { vivify: None, ..arithmetic })
                }
                (Question::InitialNumber, Operation::Arithmetic(arithmetic)) => {
                    number = arithmetic.initial.to_string();
                    let ttl = arithmetic.vivify.unwrap_or_default();
                    let mode = StoreMode::Add;
                    Operation::Store(Store { key, value: number.as_bytes(), ttl, mode, ..Store::default() })
                }
                (Question::SetValue, Operation::Store(Store { value, flags, ttl, .. })) => {
                    Operation::Store(Store { key, value, flags, ttl, ..Store::default() })
                }
                (Question::Delete, _) => Operation::Delete(Delete { key, ..Delete::default() }),
                (Question::Read, _) => {
                    if dialect == ServerDialect::Meta {
                        fields.time_left = TimeLeft::Before;
                    }
                    Operation::Get(Get { key, ..Get::default() })
                }
                (Question::AddFound { question, ttl_s, needs_time }, _) => {
                    let (hit, has_time) = self.hit(question).ok_or(NotSpoken::Operation)?;
                    if needs_time && !has_time {
                        return Err(NotSpoken::Flag);
                    }
                    let (value, flags) = (hit.record.value, hit.record.attributes.flags);
                    let (ttl, mode) = (ttl_left(&hit, ttl_s), StoreMode::Add);
                    Operation::Store(Store { key, value, flags, ttl, mode, ..Store::default() })
                }
                _ => return Err(NotSpoken::Operation),
            };
            let asked = put_operation_for(dialect, &with_ttl_max(asked, ttl_max_s), fields, out)?;
            self.state.pools[place.pool].put_vbucket(key, out);
            Ok(asked)
        });
        written.unwrap_or(Err(NotSpoken::Operation))
    }

    /// Returns the record that a question has found, and whether its time to live is known.
    fn hit(&self, question: usize) -> Option<(HitReply<'_>, bool)> {
        let QuestionState::Answered { asked, reply, .. } = &self.questions.get(question)?.state else {
            return None;
        };
        match decode_reply_of(*asked, reply) {
            Ok(ServerReply::Reply(Reply::Hit(hit))) => Some((hit, asked.dialect() == ServerDialect::Meta)),
            _ => None,
        }
    }

    /// Writes the answer to a question in the form that the client wants.
    fn reply(&self, number: usize) -> RoutedReply {
        let mut bytes = Vec::new();
        let is_error = match self.questions.get(number).map(|asked| &asked.state) {
            Some(QuestionState::Answered { asked, reply, .. }) => match decode_reply_of(*asked, reply) {
                Ok(ServerReply::Reply(reply)) => {
                    self.request.put_reply(&reply, &mut bytes);
                    matches!(reply, Reply::Refused(_))
                }
                Ok(ServerReply::Error(text)) => {
                    self.request.put_failure(text, &mut bytes);
                    true
                }
                Err(_) => {
                    self.request.put_failure(b"SERVER_ERROR the reply is not understood", &mut bytes);
                    true
                }
            },
            Some(QuestionState::Created(value)) => {
                let created = ArithmeticReply {
                    value: *value,
                    version: 0,
                    expiry_before: Expiry::Never,
                    expiry: Expiry::Never,
                    created: true,
                    now: UnixSeconds(0),
                };
                self.request.put_reply(&Reply::Number(created), &mut bytes);
                false
            }
            Some(QuestionState::NotSpoken(message)) => {
                self.put_refusal(message, &mut bytes);
                true
            }
            Some(QuestionState::Lost { label, reason, when_down }) => {
                self.request.put_loss(*when_down, label, reason, &mut bytes)
            }
            Some(QuestionState::Unsent | QuestionState::Sent { .. }) | None => {
                self.request.put_failure(b"SERVER_ERROR the route has no server", &mut bytes);
                true
            }
        };
        RoutedReply { bytes, is_error }
    }
}

impl RouteRun {
    /// Writes the reply to a request that its server does not know, or whose value is too long. In
    /// the binary protocol, only an invalid key is an invalid request.
    fn put_refusal(&self, message: &str, out: &mut Vec<u8>) {
        self.request.with(|_, form| match message {
            TOO_LONG => form.put_failure(message.as_bytes(), out),
            NOT_SPOKEN if form.is_binary() => encode(form, &Reply::Unknown, out),
            _ => encode(form, &Reply::Faulty(message), out),
        });
    }
}

impl std::fmt::Debug for RouteRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteRun").field("plan", &self.plan).field("questions", &self.questions).finish()
    }
}

impl Answers for RouteRun {
    fn len(&self) -> usize {
        self.questions.len()
    }

    fn outcome(&self, question: usize) -> Option<Outcome> {
        match &self.questions[question].state {
            QuestionState::Unsent | QuestionState::Sent { .. } => None,
            QuestionState::Answered { outcome, .. } => Some(*outcome),
            QuestionState::Created(_) => Some(Outcome::Success),
            QuestionState::NotSpoken(_) => Some(Outcome::Failure),
            QuestionState::Lost { .. } => Some(Outcome::Error),
        }
    }

    fn have_same_value(&self, a: usize, b: usize) -> bool {
        let record = |question| self.hit(question).map(|(hit, _)| hit.record);
        let (a, b) = (record(a), record(b));
        a.map(|record| record.value) == b.map(|record| record.value)
    }
}

/// Returns the form of a reply, for its connection.
pub(super) fn reply_kind(asked: AskedReply) -> ReplyKind {
    match asked.dialect() {
        ServerDialect::Binary => ReplyKind::Binary,
        _ if asked.is_values() => ReplyKind::Values,
        _ => ReplyKind::Single,
    }
}

fn outcome_of(asked: AskedReply, reply: &[u8]) -> Outcome {
    match decode_reply_of(asked, reply) {
        Ok(ServerReply::Reply(reply)) => match reply {
            Reply::Hit(_) | Reply::Inspection(_) => Outcome::Hit,
            Reply::Miss => Outcome::Miss,
            Reply::NotStored | Reply::Exists | Reply::NotFound => Outcome::Failure,
            // Another server would refuse the same.
            Reply::Refused(RefusalReason::TooLarge | RefusalReason::NonNumeric) | Reply::Unknown => {
                Outcome::Failure
            }
            Reply::Refused(_) => Outcome::Error,
            _ => Outcome::Success,
        },
        Ok(ServerReply::Error(text)) if !text.starts_with(b"SERVER_ERROR") => Outcome::Failure,
        Ok(ServerReply::Error(_)) | Err(_) => Outcome::Error,
    }
}

/// Returns the time to live of a record that was found, or else this one.
fn ttl_left(hit: &HitReply<'_>, otherwise_s: Option<u32>) -> Ttl {
    match (hit.record.attributes.expiry.seconds_left(hit.now), otherwise_s) {
        (Some(left), _) => Ttl::Seconds(left.clamp(1, i64::from(u32::MAX)) as u32),
        (None, Some(ttl_s)) => Ttl::Seconds(ttl_s),
        (None, None) => Ttl::Never,
    }
}

/// Returns the operation with limited times to live, in the form that servers take.
fn with_ttl_max(operation: Operation<'_>, ttl_max_s: Option<u32>) -> Operation<'_> {
    let max_s = ttl_max_s.unwrap_or(u32::MAX);
    let now_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |duration| duration.as_secs());
    let span = |seconds: u32| match seconds.min(max_s) {
        // A longer span would be taken for a Unix time.
        long if long > SPAN_MAX_S => Ttl::At(now_s + u64::from(long)),
        seconds => Ttl::Seconds(seconds),
    };
    let bounded = |ttl: Ttl| match ttl {
        Ttl::Never if ttl_max_s.is_none() => Ttl::Never,
        Ttl::Never => span(max_s),
        Ttl::Expired => Ttl::Expired,
        Ttl::Seconds(seconds) => span(seconds),
        Ttl::At(at) if ttl_max_s.is_some() && at > now_s + u64::from(max_s) => span(max_s),
        Ttl::At(at) => Ttl::At(at),
        Ttl::Sliding(seconds) => Ttl::Sliding(seconds.min(max_s)),
    };
    match operation {
        Operation::Get(mut get) => {
            get.touch = get.touch.map(bounded);
            get.vivify = get.vivify.map(bounded);
            Operation::Get(get)
        }
        Operation::Store(mut store) => {
            // Append and prepend keep the time to live of the record.
            if !matches!(store.mode, StoreMode::Append | StoreMode::Prepend) {
                store.ttl = bounded(store.ttl);
            }
            store.vivify = store.vivify.map(bounded);
            Operation::Store(store)
        }
        Operation::Arithmetic(mut arithmetic) => {
            arithmetic.vivify = arithmetic.vivify.map(bounded);
            arithmetic.touch = arithmetic.touch.map(bounded);
            Operation::Arithmetic(arithmetic)
        }
        Operation::Touch(mut touch) => {
            touch.ttl = bounded(touch.ttl);
            Operation::Touch(touch)
        }
        other => other,
    }
}
