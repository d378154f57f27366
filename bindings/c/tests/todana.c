// Tests the functions of the C library: their bytes, their codes, and their errors.
// `cargo xtask test` runs this program, with and without AddressSanitizer. Its argument is an empty
// folder for its files.
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <todana.h>

static const char *folder;

#define CHECK(what)                                                                          \
  do {                                                                                       \
    if (!(what)) {                                                                           \
      fprintf(stderr, "%s:%d: %s\n  message: %s\n", __FILE__, __LINE__, #what, todana_message()); \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

#define S(text) todana_string(text)

static int is(todana_bytes bytes, const char *text) {
  return bytes.data && bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

static int says(const char *piece) { return strstr(todana_message(), piece) != NULL; }

static todana_db *opened(const char *name) {
  todana_db *db = NULL;
  CHECK(todana_open(name, NULL, &db) == TODANA_OK && db != NULL);
  return db;
}

// Returns true if a record has this value, or for NULL if the record does not exist.
static int has(todana_db *db, const char *key, const char *value) {
  todana_bytes found;
  int code = todana_get(db, S(key), &found);
  int is_so = value ? code == TODANA_OK && is(found, value) : code == TODANA_NONE && found.data == NULL;
  todana_free(found.data);
  return is_so;
}

static const char *path(const char *name) {
  static char place[4096];
  snprintf(place, sizeof place, "%s/%s", folder, name);
  return place;
}

static void values_are_bytes(void) {
  todana_db *db = opened("mem:hash");
  todana_bytes value;
  CHECK(todana_set(db, todana_span("a\0b", 3), todana_span("\0\xff\n", 3)) == TODANA_OK);
  CHECK(todana_get(db, todana_span("a\0b", 3), &value) == TODANA_OK);
  CHECK(value.len == 3 && memcmp(value.data, "\0\xff\n", 4) == 0); // followed by a NUL
  todana_free(value.data);
  CHECK(todana_contains(db, S("a")) == TODANA_NONE);
  CHECK(todana_set(db, S(""), todana_span(NULL, 0)) == TODANA_OK);
  CHECK(has(db, "", ""));
  CHECK(todana_close(db) == TODANA_OK);
}

static void outcomes_are_codes(void) {
  todana_db *db = opened("mem:hash");
  int64_t sum = 0, one = 1;
  todana_bytes a = S("a"), b = S("b");
  CHECK(todana_replace(db, S("k"), S("0"), NULL) == TODANA_NONE);
  CHECK(todana_add(db, S("k"), S("1"), NULL) == TODANA_OK);
  CHECK(todana_add(db, S("k"), S("2"), NULL) == TODANA_OTHER && has(db, "k", "1"));
  CHECK(todana_replace(db, S("k"), S("3"), NULL) == TODANA_OK && has(db, "k", "3"));
  CHECK(todana_append(db, S("k"), S("4")) == TODANA_OK);
  CHECK(todana_prepend(db, S("k"), S("2")) == TODANA_OK && has(db, "k", "234"));
  CHECK(todana_increment(db, S("k"), 2, NULL, &sum) == TODANA_OK && sum == 236);
  CHECK(todana_increment(db, S("n"), 5, NULL, &sum) == TODANA_NONE && has(db, "n", NULL));
  CHECK(todana_increment(db, S("n"), 5, &one, &sum) == TODANA_OK && sum == 1);
  CHECK(todana_increment(db, S("n"), -3, &one, NULL) == TODANA_OK && has(db, "n", "-2"));
  CHECK(todana_set(db, S("x"), S("word")) == TODANA_OK);
  CHECK(todana_increment(db, S("x"), 1, NULL, &sum) == TODANA_INVALID && says("not a 64-bit number"));
  CHECK(todana_compare_and_swap(db, S("l"), NULL, &a) == TODANA_OK);
  CHECK(todana_compare_and_swap(db, S("l"), NULL, &b) == TODANA_OTHER && has(db, "l", "a"));
  CHECK(todana_compare_and_swap(db, S("l"), &a, NULL) == TODANA_OK && has(db, "l", NULL));
  CHECK(todana_remove(db, S("k")) == TODANA_OK && todana_remove(db, S("k")) == TODANA_NONE);
  todana_bytes seized;
  CHECK(todana_seize(db, S("x"), &seized) == TODANA_OK && is(seized, "word"));
  todana_free(seized.data);
  CHECK(todana_seize(db, S("x"), &seized) == TODANA_NONE && seized.data == NULL);
  CHECK(todana_close(db) == TODANA_OK);
}

static void attributes_are_returned(void) {
  todana_db *db = opened("mem:tree");
  todana_attributes given = {0}, read;
  todana_bytes value;
  uint64_t version = 0, later = 0;
  given.life = TODANA_SLIDING;
  given.seconds = 900;
  given.flags = 7;
  CHECK(todana_set_with(db, S("s"), S("v"), &given) == TODANA_OK);
  CHECK(todana_get_with(db, S("s"), &value, &read, &version) == TODANA_OK && is(value, "v"));
  todana_free(value.data);
  CHECK(read.life == TODANA_SLIDING && read.seconds == 900 && read.flags == 7 && version > 0);
  CHECK(todana_set(db, S("s"), S("w")) == TODANA_OK);
  CHECK(todana_compare_and_set(db, S("s"), S("x"), version) == TODANA_OTHER);
  CHECK(todana_get_with(db, S("s"), &value, NULL, &later) == TODANA_OK && later != version);
  todana_free(value.data);
  CHECK(todana_compare_and_set(db, S("s"), S("x"), later) == TODANA_OK && has(db, "s", "x"));
  CHECK(todana_compare_and_set(db, S("gone"), S("x"), later) == TODANA_NONE);

  uint64_t now = (uint64_t)time(NULL);
  given.life = TODANA_SECONDS;
  given.seconds = 1000;
  CHECK(todana_touch(db, S("s"), &given) == TODANA_OK);
  CHECK(todana_get_with(db, S("s"), &value, &read, NULL) == TODANA_OK);
  todana_free(value.data);
  CHECK(read.life == TODANA_AT && read.seconds >= now + 990 && read.seconds <= now + 1100);
  given.life = TODANA_AT;
  given.seconds = 1; // long past
  CHECK(todana_touch(db, S("s"), &given) == TODANA_OK && has(db, "s", NULL));
  CHECK(todana_touch(db, S("s"), NULL) == TODANA_NONE);
  given.life = 9;
  CHECK(todana_set_with(db, S("s"), S("v"), &given) == TODANA_INVALID && says("no life of kind 9"));
  given.life = TODANA_SLIDING;
  given.seconds = UINT64_MAX;
  CHECK(todana_add(db, S("s"), S("v"), &given) == TODANA_INVALID && has(db, "s", NULL));
  CHECK(todana_close(db) == TODANA_OK);
}

static void several_records_in_one_call(void) {
  todana_db *db = opened("mem:tree");
  todana_bytes keys[] = {S("a"), S("b"), S("nothing"), S("c")};
  todana_bytes values[] = {S("1"), S(""), S("x"), S("3")};
  todana_list three = {keys, 2}, all = {keys, 4}, given = {values, 2}, got;
  size_t removed = 9;
  CHECK(todana_set_many(db, three, given) == TODANA_OK);
  CHECK(todana_set(db, S("c"), S("3")) == TODANA_OK);
  CHECK(todana_get_many(db, all, &got) == TODANA_OK && got.len == 4);
  CHECK(is(got.items[0], "1") && is(got.items[1], "") && got.items[2].data == NULL && is(got.items[3], "3"));
  CHECK(((const char *)got.items[3].data)[1] == '\0');
  todana_free(got.items);
  CHECK(todana_set_many(db, all, given) == TODANA_INVALID && says("4 keys and 2 values"));
  CHECK(todana_remove_many(db, all, &removed) == TODANA_OK && removed == 3);
  todana_list none = {NULL, 0}, bad = {NULL, 2};
  CHECK(todana_get_many(db, none, &got) == TODANA_OK && got.len == 0);
  todana_free(got.items);
  CHECK(todana_get_many(db, bad, &got) == TODANA_INVALID);
  CHECK(todana_close(db) == TODANA_OK);
}

static int stop_at_three(void *context, const todana_record *record) {
  char *seen = context;
  strncat(seen, record->key.data, record->key.len);
  return strlen(seen) == 3;
}

static void ranges_are_read_in_both_directions(void) {
  todana_db *db = opened("mem:tree"), *hash = opened("mem:hash");
  todana_iterator *iterator;
  todana_record record;
  todana_range range;
  char name[2] = "a", seen[8] = "";
  for (; name[0] <= 'f'; name[0]++) CHECK(todana_set(db, S(name), S("v")) == TODANA_OK);

  memset(&range, 0, sizeof range);
  range.from = S("b");
  range.to = S("e");
  range.with_to = 1;
  range.backwards = 1;
  CHECK(todana_iterate(db, &range, &iterator) == TODANA_OK);
  for (name[0] = 'e'; name[0] >= 'b'; name[0]--) {
    CHECK(todana_next(iterator, &record) == TODANA_OK && is(record.key, name) && is(record.value, "v"));
    CHECK(record.expires_at == 0 && record.attributes.life == TODANA_NEVER);
  }
  CHECK(todana_next(iterator, &record) == TODANA_NONE && todana_next(iterator, &record) == TODANA_NONE);
  CHECK(todana_iterator_close(iterator) == TODANA_OK);
  CHECK(todana_iterator_close(iterator) == TODANA_CLOSED && todana_next(iterator, &record) == TODANA_CLOSED);

  range.only_keys = range.without_from = 1;
  range.with_to = range.backwards = 0;
  CHECK(todana_iterate(db, &range, &iterator) == TODANA_OK);
  CHECK(todana_next(iterator, &record) == TODANA_OK && is(record.key, "c") && record.value.data == NULL);
  CHECK(todana_next(iterator, &record) == TODANA_OK && is(record.key, "d"));
  CHECK(todana_next(iterator, &record) == TODANA_NONE);
  CHECK(todana_iterator_close(iterator) == TODANA_OK);

  CHECK(todana_each(db, NULL, stop_at_three, seen) == TODANA_OK && strcmp(seen, "abc") == 0);
  CHECK(todana_iterate(hash, &range, &iterator) == TODANA_INVALID && says("unordered"));
  range.prefix = S("p");
  CHECK(todana_iterate(db, &range, &iterator) == TODANA_INVALID);
  memset(&range, 0, sizeof range);
  range.backwards = 1;
  CHECK(todana_iterate(hash, &range, &iterator) == TODANA_INVALID);
  CHECK(todana_is_ordered(db) == TODANA_OK && todana_is_ordered(hash) == TODANA_NONE);

  // An iterator and a cursor of a closed database.
  todana_cursor *cursor;
  CHECK(todana_iterate(db, NULL, &iterator) == TODANA_OK && todana_cursor_open(db, &cursor) == TODANA_OK);
  CHECK(todana_close(db) == TODANA_OK && todana_close(hash) == TODANA_OK);
  CHECK(todana_next(iterator, &record) == TODANA_CLOSED && todana_cursor_first(cursor) == TODANA_CLOSED);
  CHECK(todana_iterator_close(iterator) == TODANA_OK && todana_cursor_close(cursor) == TODANA_OK);
}

static void cursors_survive_writes(void) {
  todana_db *db = opened("mem:tree");
  todana_cursor *cursor;
  todana_record record;
  CHECK(todana_set(db, S("ant"), S("6")) == TODANA_OK && todana_set(db, S("bee"), S("6")) == TODANA_OK);
  CHECK(todana_set(db, S("crab"), S("10")) == TODANA_OK);
  CHECK(todana_cursor_open(db, &cursor) == TODANA_OK);
  CHECK(todana_cursor_record(cursor, &record) == TODANA_NONE && record.key.data == NULL && record.key.len == 0);
  CHECK(todana_cursor_jump(cursor, S("b")) == TODANA_OK);
  CHECK(todana_cursor_record(cursor, &record) == TODANA_OK && is(record.key, "bee") && is(record.value, "6"));
  CHECK(todana_remove(db, S("bee")) == TODANA_OK);
  CHECK(todana_cursor_record(cursor, &record) == TODANA_NONE && is(record.key, "bee"));
  CHECK(todana_cursor_set(cursor, S("7")) == TODANA_NONE);
  CHECK(todana_cursor_step(cursor) == TODANA_OK && todana_cursor_set(cursor, S("8")) == TODANA_OK);
  CHECK(has(db, "crab", "8") && todana_cursor_remove(cursor) == TODANA_OK);
  CHECK(todana_cursor_step(cursor) == TODANA_NONE);
  CHECK(todana_cursor_last(cursor) == TODANA_OK && todana_cursor_step_back(cursor) == TODANA_NONE);
  CHECK(todana_cursor_jump_back(cursor, S("b")) == TODANA_OK);
  CHECK(todana_cursor_close(cursor) == TODANA_OK && todana_cursor_close(NULL) == TODANA_OK);
  CHECK(todana_cursor_first(cursor) == TODANA_CLOSED && todana_close(db) == TODANA_OK);
}

struct visited {
  todana_db *db;
  int code, inner;
  char seen[32];
};

static int visit(void *context, todana_bytes key, const todana_record *record, todana_change *change) {
  struct visited *visited = context;
  todana_bytes value;
  visited->inner = todana_get(visited->db, key, &value);
  snprintf(visited->seen, sizeof visited->seen, "%.*s=%.*s", (int)key.len, (const char *)key.data,
           record ? (int)record->value.len : 1, record ? (const char *)record->value.data : "-");
  change->value = S("made");
  change->attributes.flags = 5;
  return visited->code;
}

static int see(void *context, const todana_record *record) {
  strncat(context, record->value.data, record->value.len);
  return 0;
}

static void visitors_change_records(void) {
  todana_db *db = opened("mem:hash");
  struct visited visited = {db, TODANA_KEEP, 0, ""};
  char seen[16] = "";
  todana_attributes attributes = {TODANA_NEVER, 3, 0};
  todana_bytes value, pair[] = {S("k"), S("l")};
  todana_list both = {pair, 2};
  CHECK(todana_update(db, S("k"), visit, &visited) == TODANA_OK && has(db, "k", NULL));
  CHECK(strcmp(visited.seen, "k=-") == 0);
  CHECK(visited.inner == TODANA_BUSY);
  CHECK(todana_set_with(db, S("k"), S("old"), &attributes) == TODANA_OK);
  visited.code = TODANA_PUT;
  CHECK(todana_update(db, S("k"), visit, &visited) == TODANA_OK && strcmp(visited.seen, "k=old") == 0);
  CHECK(todana_get_with(db, S("k"), &value, &attributes, NULL) == TODANA_OK && is(value, "made"));
  todana_free(value.data);
  CHECK(attributes.flags == 3);
  visited.code = TODANA_PUT_WITH;
  CHECK(todana_update_many(db, both, visit, &visited) == TODANA_OK && strcmp(visited.seen, "l=-") == 0);
  CHECK(todana_get_with(db, S("k"), &value, &attributes, NULL) == TODANA_OK && attributes.flags == 5);
  todana_free(value.data);
  CHECK(todana_view(db, S("l"), see, seen) == TODANA_OK && strcmp(seen, "made") == 0);
  CHECK(todana_view(db, S("m"), see, seen) == TODANA_NONE);
  visited.code = 99;
  CHECK(todana_update(db, S("k"), visit, &visited) == TODANA_INVALID && says("cannot return 99"));
  CHECK(todana_update_many(db, both, visit, &visited) == TODANA_INVALID && has(db, "k", "made"));
  visited.code = TODANA_REMOVE;
  CHECK(todana_update_many(db, both, visit, &visited) == TODANA_OK && has(db, "k", NULL) && has(db, "l", NULL));
  CHECK(todana_update(db, S("k"), NULL, NULL) == TODANA_INVALID && says("NULL"));
  CHECK(todana_close(db) == TODANA_OK);
}

static void *reads_elsewhere(void *db) { return has(db, "a", "before") ? db : NULL; }

static void *leaves_it_open(void *db) {
  CHECK(todana_begin(db) == TODANA_OK && todana_set(db, S("left"), S("open")) == TODANA_OK);
  CHECK(todana_commit(db) == TODANA_OK);
  CHECK(todana_begin(db) == TODANA_OK && todana_set(db, S("left"), S("undone")) == TODANA_OK);
  return db;
}

static void *in_thread(void *(*run)(void *), void *context) {
  pthread_t thread;
  void *result;
  CHECK(pthread_create(&thread, NULL, run, context) == 0 && pthread_join(thread, &result) == 0);
  return result;
}

static void transactions_are_atomic_and_belong_to_a_thread(void) {
  todana_db *db = opened("mem:tree");
  todana_cursor *cursor;
  uint64_t count;
  CHECK(todana_set(db, S("a"), S("before")) == TODANA_OK);
  CHECK(todana_commit(db) == TODANA_INVALID && todana_abort(db) == TODANA_INVALID);
  CHECK(todana_begin(db) == TODANA_OK && todana_begin(db) == TODANA_BUSY);
  CHECK(todana_set(db, S("a"), S("within")) == TODANA_OK && has(db, "a", "within"));
  CHECK(in_thread(reads_elsewhere, db) == db);
  CHECK(todana_cursor_open(db, &cursor) == TODANA_OK && todana_cursor_first(cursor) == TODANA_OK);
  CHECK(todana_cursor_remove(cursor) == TODANA_OK && has(db, "a", NULL));
  CHECK(todana_snapshot(db, &(todana_db *){NULL}) == TODANA_BUSY);
  CHECK(todana_abort(db) == TODANA_OK && has(db, "a", "before"));
  CHECK(todana_begin(db) == TODANA_OK && todana_append(db, S("a"), S("!")) == TODANA_OK);
  CHECK(todana_commit(db) == TODANA_OK && has(db, "a", "before!"));
  CHECK(todana_cursor_close(cursor) == TODANA_OK);

  // The end of a thread aborts its open transaction, and other threads continue.
  CHECK(in_thread(leaves_it_open, db) == db);
  CHECK(has(db, "left", "open") && todana_set(db, S("b"), S("2")) == TODANA_OK);
  CHECK(todana_count(db, &count) == TODANA_OK && count == 3);

  // Closing aborts the transaction.
  CHECK(todana_begin(db) == TODANA_OK && todana_set(db, S("c"), S("3")) == TODANA_OK);
  CHECK(todana_close(db) == TODANA_OK && todana_commit(db) == TODANA_CLOSED);
}

struct held {
  todana_db *db;
  sem_t is_in, may_go;
};

static int waits(void *context, const todana_record *record) {
  struct held *held = context;
  (void)record;
  sem_post(&held->is_in);
  return sem_wait(&held->may_go);
}

static void *reads_within_a_transaction(void *context) {
  struct held *held = context;
  CHECK(todana_begin(held->db) == TODANA_OK);
  CHECK(todana_view(held->db, S("a"), waits, held) == TODANA_OK && todana_commit(held->db) == TODANA_OK);
  return context;
}

static int puts_with_time_to_live(void *context, todana_bytes key, const todana_record *record, todana_change *change) {
  (void)context, (void)key, (void)record;
  change->value = S("v");
  change->attributes.life = TODANA_SECONDS;
  change->attributes.seconds = 1000;
  return TODANA_PUT_WITH;
}

static void *updates(void *context) {
  struct held *held = context;
  CHECK(sem_post(&held->is_in) == 0);
  CHECK(todana_update(held->db, S("k"), puts_with_time_to_live, NULL) == TODANA_OK);
  return context;
}

static void time_to_live_starts_after_the_wait(void) {
  struct held held = {.db = opened("mem:hash")};
  pthread_t thread;
  todana_attributes read;
  todana_bytes value;
  uint64_t began = (uint64_t)time(NULL);
  struct timespec some = {0, 50 * 1000 * 1000};
  CHECK(sem_init(&held.is_in, 0, 0) == 0 && todana_begin(held.db) == TODANA_OK);
  CHECK(pthread_create(&thread, NULL, updates, &held) == 0 && sem_wait(&held.is_in) == 0);
  while ((uint64_t)time(NULL) < began + 3) nanosleep(&some, NULL);
  CHECK(todana_commit(held.db) == TODANA_OK && pthread_join(thread, NULL) == 0);
  CHECK(todana_get_with(held.db, S("k"), &value, &read, NULL) == TODANA_OK && read.life == TODANA_AT);
  todana_free(value.data);
  CHECK(read.seconds >= began + 1002); // time() may return the previous second
  CHECK(todana_close(held.db) == TODANA_OK);
}

// Closing must fail while another thread is in a transaction, because that transaction ends only
// after the close has returned. Earlier versions waited forever.
static void close_fails_during_transactions_of_other_threads(void) {
  struct held held = {.db = opened("mem:hash")};
  pthread_t thread;
  CHECK(sem_init(&held.is_in, 0, 0) == 0 && sem_init(&held.may_go, 0, 0) == 0);
  CHECK(todana_set(held.db, S("a"), S("1")) == TODANA_OK);
  CHECK(pthread_create(&thread, NULL, reads_within_a_transaction, &held) == 0 && sem_wait(&held.is_in) == 0);
  CHECK(todana_close(held.db) == TODANA_BUSY && says("transactions"));
  CHECK(sem_post(&held.may_go) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(has(held.db, "a", "1") && todana_close(held.db) == TODANA_OK);
}

static void snapshots_do_not_change(void) {
  todana_db *db = opened("mem:hash"), *snapshot;
  CHECK(todana_set(db, S("a"), S("1")) == TODANA_OK && todana_snapshot(db, &snapshot) == TODANA_OK);
  CHECK(todana_set(db, S("a"), S("2")) == TODANA_OK && todana_set(db, S("b"), S("2")) == TODANA_OK);
  CHECK(has(snapshot, "a", "1") && has(snapshot, "b", NULL) && has(db, "a", "2"));
  CHECK(todana_set(snapshot, S("a"), S("3")) == TODANA_INVALID && todana_begin(snapshot) == TODANA_INVALID);
  CHECK(todana_close(db) == TODANA_BUSY && has(db, "a", "2"));
  CHECK(todana_close(snapshot) == TODANA_OK && todana_close(db) == TODANA_OK);
  CHECK(todana_contains(snapshot, S("a")) == TODANA_CLOSED);
}

static void keys_are_found_by_patterns(void) {
  todana_db *db = opened("mem:tree");
  todana_list keys;
  todana_numbers distances;
  const char *names[] = {"crab", "crane", "crate", "heron"};
  for (int i = 0; i < 4; i++) CHECK(todana_set(db, S(names[i]), S("")) == TODANA_OK);
  CHECK(todana_match_prefix(db, S("cra"), 2, &keys) == TODANA_OK && keys.len == 2);
  CHECK(is(keys.items[0], "crab") && is(keys.items[1], "crane"));
  todana_free(keys.items);
  CHECK(todana_match_regex(db, "^h|te$", 9, &keys) == TODANA_OK && keys.len == 2 && is(keys.items[1], "heron"));
  todana_free(keys.items);
  CHECK(todana_match_regex(db, "(", 9, &keys) == TODANA_INVALID && says("regular expression"));
  CHECK(todana_match_regex(db, "\xff", 9, &keys) == TODANA_INVALID && says("UTF-8"));
  CHECK(todana_match_similar(db, S("crane"), 2, TODANA_BYTES, 2, &keys, &distances) == TODANA_OK);
  CHECK(keys.len == 2 && is(keys.items[1], "crate") && distances.items[0] == 0 && distances.items[1] == 1);
  todana_free(keys.items);
  todana_free(distances.items);
  CHECK(todana_match_similar(db, S("crane"), 2, 7, 2, &keys, NULL) == TODANA_INVALID);
  CHECK(todana_close(db) == TODANA_OK);
}

static void databases_are_copied_merged_and_dumped(void) {
  todana_options options = {0};
  todana_status status;
  uint64_t count = 0;
  char place[4096], again[4096];
  strcpy(place, path("copy.tree"));
  strcpy(again, path("text.tsv"));
  options.data_dir = path("kept");
  options.sync = TODANA_SYNC_ALWAYS;
  todana_db *db, *other = opened("mem:tree"), *copy;
  CHECK(todana_open("mem:hash", &options, &db) == TODANA_OK);
  CHECK(todana_set(db, S("a"), S("1\t2")) == TODANA_OK && todana_set(db, S("b"), S("3")) == TODANA_OK);
  CHECK(todana_sync(db) == TODANA_OK && todana_checkpoint(db) == TODANA_OK);
  CHECK(todana_close(db) == TODANA_OK && todana_open("mem:hash", &options, &db) == TODANA_OK);
  CHECK(has(db, "a", "1\t2"));
  CHECK(todana_copy(db, place, &count) == TODANA_OK && count == 2);
  CHECK(todana_copy(db, place, NULL) == TODANA_INVALID && says("exists already"));
  copy = opened(place);
  CHECK(has(copy, "b", "3") && todana_open(place, NULL, &(todana_db *){NULL}) == TODANA_BUSY);
  CHECK(todana_merge(other, copy, TODANA_MERGE_SET, &count) == TODANA_OK && count == 2);
  CHECK(todana_merge(other, copy, TODANA_MERGE_APPEND, NULL) == TODANA_OK && has(other, "b", "33"));
  CHECK(todana_merge(other, copy, 8, NULL) == TODANA_INVALID);
  CHECK(todana_merge(other, other, TODANA_MERGE_SET, NULL) == TODANA_INVALID && says("into itself"));
  CHECK(todana_dump(other, again, &count) == TODANA_OK && count == 2);
  CHECK(todana_inform(other, &status) == TODANA_OK && status.records == 2 && status.is_ordered);
  CHECK(status.record_bytes > 0 && status.memory_bytes >= status.record_bytes && status.evictions == 0);
  CHECK(todana_clear(other) == TODANA_OK && todana_count(other, &count) == TODANA_OK && count == 0);
  CHECK(todana_load(other, again, &count) == TODANA_OK && count == 2 && has(other, "a", "1\t21\t2"));
  CHECK(todana_load(other, path("nothing.tsv"), NULL) == TODANA_UNAVAILABLE && says("nothing.tsv"));
  CHECK(todana_close(db) == TODANA_OK && todana_close(other) == TODANA_OK && todana_close(copy) == TODANA_OK);
}

struct merging {
  todana_db *db, *source;
};

static void *merges(void *context) {
  struct merging *merging = context;
  uint64_t merged = 0;
  CHECK(todana_merge(merging->db, merging->source, TODANA_MERGE_SET, &merged) == TODANA_OK && merged == 30000);
  return context;
}

static void close_waits_for_the_end_of_a_merge(void) {
  char place[4096], key[32];
  strcpy(place, path("source.hash"));
  struct merging merging = {opened("mem:hash"), opened(place)};
  for (int i = 0; i < 30000; i++) {
    snprintf(key, sizeof key, "key:%d", i);
    CHECK(todana_set(merging.source, S(key), S("v")) == TODANA_OK);
  }
  pthread_t thread;
  uint64_t count = 0;
  CHECK(pthread_create(&thread, NULL, merges, &merging) == 0);
  while (count == 0) CHECK(todana_count(merging.db, &count) == TODANA_OK);
  CHECK(todana_close(merging.source) == TODANA_OK);
  CHECK(todana_close(opened(place)) == TODANA_OK);
  CHECK(pthread_join(thread, NULL) == 0 && todana_close(merging.db) == TODANA_OK);
}

static void errors_have_codes_and_messages(void) {
  todana_db *db = opened("mem:hash"), *none = NULL;
  todana_bytes value;
  todana_options options = {0};
  CHECK(todana_open("carts.txt", NULL, &none) == TODANA_INVALID && says("carts.txt") && none == NULL);
  CHECK(todana_open(NULL, NULL, &none) == TODANA_INVALID && says("name is NULL"));
  CHECK(todana_open("\xff\xfe", NULL, &none) == TODANA_INVALID && says("UTF-8"));
  CHECK(todana_open("mem:hash", NULL, NULL) == TODANA_INVALID && says("NULL"));
  CHECK(todana_open(path("text.tsv/all.hash"), NULL, &none) == TODANA_UNAVAILABLE && none == NULL);
  options.reserved[2] = 1;
  CHECK(todana_open("mem:hash", &options, &none) == TODANA_INVALID && says("reserved"));
  options.reserved[2] = 0;
  options.sync = -4;
  CHECK(todana_open("mem:hash", &options, &none) == TODANA_INVALID);

  CHECK(todana_get(NULL, S("a"), &value) == TODANA_INVALID && says("the database is NULL"));
  CHECK(todana_get(db, S("a"), NULL) == TODANA_INVALID);
  CHECK(todana_set(db, todana_span(NULL, 3), S("v")) == TODANA_INVALID && says("NULL"));
  CHECK(todana_set(db, todana_span("a", SIZE_MAX), S("v")) == TODANA_INVALID);
  CHECK(todana_set(db, todana_string(NULL), S("v")) == TODANA_OK); // no bytes

  // A key that is too long, and one that the tree on disk cannot hold, are refused.
  size_t len = ((size_t)1 << 28) + 1;
  char *key = calloc(1, len);
  CHECK(key && todana_set(db, todana_span(key, len), S("v")) == TODANA_INVALID && says("too long for this database"));
  CHECK(todana_contains(db, todana_span(key, len)) != TODANA_OK);
  free(key);

  // With small limits and no eviction, stores are refused.
  todana_db *small;
  memset(&options, 0, sizeof options);
  options.memory_max = 4 << 20;
  options.refuses_when_full = 1;
  CHECK(todana_open("mem:hash", &options, &small) == TODANA_OK);
  char *large = calloc(1, 8 << 20);
  CHECK(large && todana_set(small, S("large"), todana_span(large, 8 << 20)) == TODANA_FULL && says("room"));
  free(large);
  CHECK(todana_close(small) == TODANA_OK);

  // Objects that are closed or were never open.
  CHECK(todana_close(db) == TODANA_OK && todana_close(db) == TODANA_CLOSED && says("closed"));
  CHECK(todana_get(db, S("a"), &value) == TODANA_CLOSED && todana_begin(db) == TODANA_CLOSED);
  CHECK(todana_set((todana_db *)&value, S("a"), S("b")) == TODANA_CLOSED);
  CHECK(todana_close(NULL) == TODANA_OK);
  todana_free(NULL);
  CHECK(strlen(todana_version()) >= 5);
}

struct shared {
  todana_db *db;
  int64_t sum;
};

static void *counts(void *context) {
  int64_t zero = 0;
  for (int i = 0; i < 5000; i++)
    CHECK(todana_increment(((struct shared *)context)->db, S("n"), 1, &zero, NULL) == TODANA_OK);
  return context;
}

static void *writes_until_it_is_closed(void *db) {
  int code;
  do code = todana_set(db, S("k"), S("v"));
  while (code == TODANA_OK);
  return code == TODANA_CLOSED ? db : NULL;
}

static void threads_share_a_handle(void) {
  struct shared shared = {opened("mem:hash"), 0};
  pthread_t threads[4];
  void *result;
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, counts, &shared) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  // The first call created the number as 0.
  CHECK(has(shared.db, "n", "19999"));
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, writes_until_it_is_closed, shared.db) == 0);
  while (todana_contains(shared.db, S("k")) != TODANA_OK) {}
  CHECK(todana_close(shared.db) == TODANA_OK);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], &result) == 0 && result == shared.db);
}

struct tally {
  todana_db *db;
  pthread_mutex_t lock;
  unsigned mapped, reduced, stop_at;
  char seen[256];
};

// Emits the first letter of each key with its value. The key "x" ends the job.
static int initials(void *context, const todana_record *record, todana_emitter *emitter) {
  struct tally *tally = context;
  CHECK(pthread_mutex_lock(&tally->lock) == 0);
  tally->mapped++;
  CHECK(pthread_mutex_unlock(&tally->lock) == 0);
  if (is(record->value, "x")) return 7;
  CHECK(has(tally->db, "a1", "1")); // calls of the library are allowed here
  CHECK(todana_emit(emitter, todana_span(NULL, 3), S("v")) == TODANA_INVALID);
  CHECK(todana_emit(NULL, S("k"), S("v")) == TODANA_INVALID);
  CHECK(todana_emit(emitter, todana_span(record->key.data, 1), record->value) == TODANA_OK);
  return 0;
}

static unsigned long digits(todana_values *values) {
  unsigned long sum = 0;
  todana_bytes value;
  char text[24];
  int code;
  while ((code = todana_next_value(values, &value)) == TODANA_OK) {
    snprintf(text, sizeof text, "%.*s", (int)value.len, (const char *)value.data);
    sum += strtoul(text, NULL, 10);
  }
  CHECK(code == TODANA_NONE && value.data == NULL && todana_next_value(values, &value) == TODANA_NONE);
  return sum;
}

static int sums(void *context, todana_bytes key, todana_values *values) {
  struct tally *tally = context;
  size_t len = strlen(tally->seen);
  CHECK(todana_next_value(values, NULL) == TODANA_INVALID);
  snprintf(tally->seen + len, sizeof tally->seen - len, "%.*s=%lu ", (int)key.len, (const char *)key.data,
           digits(values));
  return ++tally->reduced == tally->stop_at;
}

static void into_one(void *context, todana_bytes key, todana_values *values, todana_emitter *emitter) {
  char text[24];
  (void)context;
  snprintf(text, sizeof text, "%lu", digits(values));
  CHECK(todana_emit(emitter, key, S(text)) == TODANA_OK);
}

static void map_reduce_reads_all_records(void) {
  struct tally tally = {.db = opened("mem:hash"), .lock = PTHREAD_MUTEX_INITIALIZER};
  todana_work work = {0};
  char key[16], expected[64];
  unsigned long sums_of[2] = {0, 0};
  for (unsigned number = 1; number <= 20000; number++) {
    char value[16];
    snprintf(key, sizeof key, "%c%u", "ab"[number % 2 == 0], number);
    snprintf(value, sizeof value, "%u", number);
    CHECK(todana_set(tally.db, S(key), S(value)) == TODANA_OK);
    sums_of[number % 2 == 0] += number;
  }
  snprintf(expected, sizeof expected, "a=%lu b=%lu ", sums_of[0], sums_of[1]);
  CHECK(todana_map_reduce(tally.db, NULL, initials, sums, &tally) == TODANA_OK);
  CHECK(tally.mapped == 20000 && strcmp(tally.seen, expected) == 0);

  // With little memory, pairs go to disk or are combined.
  for (int combines = 0; combines <= 1; combines++) {
    work.threads = 3, work.memory_max = 1, work.temp_dir = folder;
    work.combine = combines ? into_one : NULL;
    tally.seen[0] = 0;
    CHECK(todana_map_reduce(tally.db, &work, initials, sums, &tally) == TODANA_OK);
    CHECK(strcmp(tally.seen, expected) == 0);
  }
  work.temp_dir = "/nowhere/at/all", work.combine = NULL;
  CHECK(todana_map_reduce(tally.db, &work, initials, sums, &tally) == TODANA_UNAVAILABLE);

  tally.seen[0] = 0, tally.reduced = 0, tally.stop_at = 1;
  CHECK(todana_map_reduce(tally.db, NULL, initials, sums, &tally) == TODANA_OTHER);
  CHECK(strncmp(tally.seen, expected, strlen(tally.seen)) == 0 && tally.reduced == 1);
  CHECK(todana_set(tally.db, S("c"), S("x")) == TODANA_OK);
  tally.seen[0] = 0;
  CHECK(todana_map_reduce(tally.db, NULL, initials, sums, &tally) == TODANA_OTHER && !tally.seen[0]);

  CHECK(todana_map_reduce(tally.db, NULL, NULL, sums, &tally) == TODANA_INVALID && says("NULL"));
  CHECK(todana_map_reduce(tally.db, NULL, initials, NULL, &tally) == TODANA_INVALID);
  CHECK(todana_begin(tally.db) == TODANA_OK);
  CHECK(todana_map_reduce(tally.db, NULL, initials, sums, &tally) == TODANA_BUSY && says("transaction"));
  CHECK(todana_abort(tally.db) == TODANA_OK && todana_close(tally.db) == TODANA_OK);
  CHECK(todana_map_reduce(tally.db, NULL, initials, sums, &tally) == TODANA_CLOSED);
}

static void numbers_have_kyoto_cabinets_format(void) {
  todana_db *db = opened("mem:hash");
  int64_t sum = 0;
  double real = 0;
  CHECK(todana_increment_binary(db, S("n"), 5, 100, &sum) == TODANA_OK && sum == 105);
  CHECK(todana_increment_binary(db, S("n"), -107, 0, NULL) == TODANA_OK);
  CHECK(todana_increment_binary(db, S("n"), 0, INT64_MIN, &sum) == TODANA_OK && sum == -2);
  CHECK(has(db, "n", "\xff\xff\xff\xff\xff\xff\xff\xfe"));
  CHECK(todana_increment_binary(db, S("n"), 9, INT64_MAX, &sum) == TODANA_OK && sum == 9);
  CHECK(todana_increment_binary(db, S("none"), 9, INT64_MIN, &sum) == TODANA_NONE && has(db, "none", NULL));
  CHECK(todana_increment_double(db, S("d"), 1.5, 0, &real) == TODANA_OK && real == 1.5);
  CHECK(todana_increment_double(db, S("d"), -3.25, 0, &real) == TODANA_OK && real == -1.75);
  CHECK(todana_increment_double(db, S("d"), 0.5, INFINITY, &real) == TODANA_OK && real == 0.5);
  CHECK(todana_increment_double(db, S("none"), 1, -INFINITY, &real) == TODANA_NONE);
  CHECK(todana_set(db, S("x"), S("word")) == TODANA_OK);
  CHECK(todana_increment_binary(db, S("x"), 1, INT64_MAX, &sum) == TODANA_INVALID && says("not a number of 8 bytes"));
  CHECK(todana_increment_double(db, S("x"), 1, 0, &real) == TODANA_INVALID && says("not a number of 16 bytes"));
  CHECK(has(db, "x", "word") && todana_close(db) == TODANA_OK);
}

// Doubles a value of one byte, removes a record whose key begins with r, and fails for x.
static int edit(void *context, todana_bytes key, const todana_record *record, todana_change *change) {
  static char twice[2];
  const char *value;
  ++*(int *)context;
  if (!record || key.len != 1) return TODANA_KEEP;
  value = (const char *)record->value.data;
  if (*(const char *)key.data == 'x') return 77;
  if (record->value.len != 1) return TODANA_KEEP;
  if (*value == 'r') return TODANA_REMOVE;
  twice[0] = twice[1] = *value;
  change->value = todana_span(twice, 2);
  return TODANA_PUT;
}

static void each_record_is_visited(void) {
  todana_db *db = opened("mem:tree");
  int calls = 0;
  uint64_t changed = 9;
  CHECK(todana_update_each(db, edit, &calls, &changed) == TODANA_OK && changed == 0 && calls == 0);
  CHECK(todana_set(db, S("a"), S("1")) == TODANA_OK && todana_set(db, S("b"), S("r")) == TODANA_OK);
  CHECK(todana_set(db, S("c"), S("long")) == TODANA_OK);
  CHECK(todana_update_each(db, edit, &calls, &changed) == TODANA_OK && changed == 2 && calls == 3);
  CHECK(has(db, "a", "11") && has(db, "b", NULL) && has(db, "c", "long"));
  CHECK(todana_set(db, S("a"), S("2")) == TODANA_OK && todana_set(db, S("x"), S("3")) == TODANA_OK);
  CHECK(todana_begin(db) == TODANA_OK);
  CHECK(todana_update_each(db, edit, &calls, NULL) == TODANA_INVALID && says("cannot return 77"));
  CHECK(has(db, "a", "22") && todana_abort(db) == TODANA_OK && has(db, "a", "2"));
  CHECK(todana_update_each(db, NULL, NULL, NULL) == TODANA_INVALID);
  CHECK(todana_close(db) == TODANA_OK);
}

struct tape {
  char bytes[256];
  size_t len, at;
};

static int put(void *context, todana_bytes piece) {
  struct tape *tape = context;
  if (tape->len + piece.len > sizeof tape->bytes) return 5;
  memcpy(tape->bytes + tape->len, piece.data, piece.len);
  tape->len += piece.len;
  return 0;
}

static ptrdiff_t take(void *context, void *piece, size_t room) {
  struct tape *tape = context;
  (void)room;
  if (tape->at == tape->len) return 0;
  *(char *)piece = tape->bytes[tape->at++];
  return 1;
}

static ptrdiff_t take_too_much(void *context, void *piece, size_t room) {
  (void)context, (void)piece;
  return (ptrdiff_t)room + 1;
}

static void snapshots_have_kyoto_cabinets_format(void) {
  static const char snapshot[] = "KCSS\n\0\0\x02\x02k1v1\0\x02\x02k2v2\xff";
  todana_db *db = opened("mem:tree");
  struct tape tape = {{0}, 0, 0};
  const char *place = path("s.kcss");
  uint64_t count = 0;
  FILE *file;
  CHECK(todana_set(db, S("k1"), S("v1")) == TODANA_OK && todana_set(db, S("k2"), S("v2")) == TODANA_OK);
  CHECK(todana_stream_snapshot(db, put, &tape, TODANA_BARE, &count) == TODANA_OK && count == 2);
  CHECK(tape.len == sizeof snapshot - 1 && memcmp(tape.bytes, snapshot, tape.len) == 0);
  CHECK(todana_dump_snapshot(db, place, TODANA_BARE, &count) == TODANA_OK && count == 2);
  CHECK(todana_clear(db) == TODANA_OK);
  CHECK(todana_load_snapshot(db, place, TODANA_BARE, &count) == TODANA_OK && count == 2 && has(db, "k2", "v2"));
  CHECK(todana_clear(db) == TODANA_OK);
  CHECK(todana_take_snapshot(db, take, &tape, TODANA_BARE, &count) == TODANA_OK && count == 2 && has(db, "k1", "v1"));
  CHECK(todana_load_snapshot(db, place, TODANA_TIMED, NULL) == TODANA_CORRUPT && says("too short for the time"));
  CHECK(todana_load_snapshot(db, place, 7, NULL) == TODANA_INVALID);
  CHECK(todana_load_snapshot(db, path("none"), TODANA_BARE, NULL) == TODANA_UNAVAILABLE);
  CHECK(todana_take_snapshot(db, take_too_much, NULL, TODANA_BARE, NULL) == TODANA_UNAVAILABLE);
  tape.len = sizeof tape.bytes;
  CHECK(todana_stream_snapshot(db, put, &tape, TODANA_BARE, NULL) == TODANA_UNAVAILABLE && says("returned 5"));
  CHECK((file = fopen(path("cut.kcss"), "wb")) && fwrite(snapshot, 1, 12, file) == 12 && fclose(file) == 0);
  CHECK(todana_clear(db) == TODANA_OK);
  CHECK(todana_load_snapshot(db, path("cut.kcss"), TODANA_BARE, NULL) == TODANA_CORRUPT && says("byte 6"));
  CHECK(todana_count(db, &count) == TODANA_OK && count == 0);
  CHECK(todana_close(db) == TODANA_OK);
}

// Like Kyoto Cabinet's comparators: keys in the order of their numbers.
static void stored_keys_implement_other_orders(void) {
  todana_db *db = opened("mem:tree");
  const char *keys[] = {"10", "9", "-1", "9.5"}, *sorted[] = {"-1", "9", "9.5", "10"};
  todana_range all = {0};
  todana_iterator *iterator;
  todana_record record;
  todana_bytes stored, key;
  for (int i = 0; i < 4; ++i) {
    CHECK(todana_stored_key(TODANA_DECIMAL, S(keys[i]), &stored) == TODANA_OK);
    CHECK(todana_set(db, stored, S("")) == TODANA_OK);
    todana_free(stored.data);
  }
  CHECK(todana_iterate(db, &all, &iterator) == TODANA_OK);
  for (int i = 0; i < 4; ++i) {
    CHECK(todana_next(iterator, &record) == TODANA_OK);
    CHECK(todana_original_key(TODANA_DECIMAL, record.key, &key) == TODANA_OK && is(key, sorted[i]));
    todana_free(key.data);
  }
  todana_iterator_close(iterator);
  CHECK(todana_stored_key_by(S("sort"), S("key"), &stored) == TODANA_OK);
  CHECK(todana_original_key(TODANA_BY_SORT_KEY, stored, &key) == TODANA_OK && is(key, "key"));
  todana_free(stored.data);
  todana_free(key.data);
  CHECK(todana_original_key(TODANA_DECIMAL, S("key"), &key) == TODANA_INVALID && says("does not have the form"));
  CHECK(todana_stored_key(9, S("key"), &stored) == TODANA_INVALID);
  CHECK(todana_close(db) == TODANA_OK);
}

// Kyoto Cabinet's OREADER. Earlier versions allowed only one process to open a database on disk,
// even for reading.
static void readers_share_a_database_without_writer(void) {
  todana_options reading = {.reads_only = 1};
  const char *name = path("read.tree");
  todana_db *writer = opened(name), *one = NULL, *other = NULL, *none = NULL;
  CHECK(todana_set(writer, S("a"), S("1")) == TODANA_OK);
  CHECK(todana_open(name, &reading, &none) == TODANA_BUSY && says("open for writing"));
  CHECK(todana_close(writer) == TODANA_OK);
  CHECK(todana_open(name, &reading, &one) == TODANA_OK && todana_open(name, &reading, &other) == TODANA_OK);
  CHECK(has(one, "a", "1") && has(other, "a", "1"));
  CHECK(todana_set(one, S("a"), S("2")) == TODANA_INVALID && says("opened for reading"));
  CHECK(todana_begin(one) == TODANA_INVALID);
  CHECK(todana_open(name, NULL, &none) == TODANA_BUSY && says("open for reading"));
  CHECK(todana_close(one) == TODANA_OK && todana_close(other) == TODANA_OK);
  writer = opened(name);
  CHECK(has(writer, "a", "1") && todana_close(writer) == TODANA_OK);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  folder = argv[1];
  values_are_bytes();
  outcomes_are_codes();
  attributes_are_returned();
  several_records_in_one_call();
  ranges_are_read_in_both_directions();
  cursors_survive_writes();
  visitors_change_records();
  map_reduce_reads_all_records();
  transactions_are_atomic_and_belong_to_a_thread();
  time_to_live_starts_after_the_wait();
  close_fails_during_transactions_of_other_threads();
  snapshots_do_not_change();
  keys_are_found_by_patterns();
  databases_are_copied_merged_and_dumped();
  close_waits_for_the_end_of_a_merge();
  numbers_have_kyoto_cabinets_format();
  each_record_is_visited();
  snapshots_have_kyoto_cabinets_format();
  errors_have_codes_and_messages();
  stored_keys_implement_other_orders();
  readers_share_a_database_without_writer();
  threads_share_a_handle();
  puts("all checks passed");
  return 0;
}
