// Todana for C: docs/c.md is the guide.
//
// Functions return TODANA_OK (0), another code from 0 on for an outcome that is no error, or a negative code for an error, which
// todana_message() tells in words. What a function gives by `todana_bytes *` or a list is the caller's to free with todana_free(); what is
// shown by `todana_record *` is not. Handles may be used by any number of threads; a handle that was closed is TODANA_CLOSED.
// A pointer must point at what its type says, until the function returns. After fork() a child must not use the library.
//
// Made by cargo xtask header: do not edit.


#ifndef TODANA_H
#define TODANA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// It is done.
#define TODANA_OK 0

// There is no such record; or there are no more of them.
#define TODANA_NONE 1

// There is one already, or another one than was expected.
#define TODANA_OTHER 2

// The call is wrong: mend it.
#define TODANA_INVALID -1

// There is no room: make some.
#define TODANA_FULL -2

// Another one has it: try again. Or this thread calls from within a visitor, or past its own transaction.
#define TODANA_BUSY -3

// What is stored is damaged: salvage it.
#define TODANA_CORRUPT -4

// The disk cannot be reached or written now.
#define TODANA_UNAVAILABLE -5

// It was closed, or was never open.
#define TODANA_CLOSED -6

// An error of the library itself, which it has caught: report it, and trust the database no further.
#define TODANA_BROKEN -7

// It stays until it is removed.
#define TODANA_NEVER 0

// It lives for so many seconds.
#define TODANA_SECONDS 1

// It lives until this Unix time.
#define TODANA_AT 2

// It lives until it has not been used for so many seconds.
#define TODANA_SLIDING 3

// Writes are on disk within a second.
#define TODANA_SYNC_SOON 0

// Each write is on disk when it returns.
#define TODANA_SYNC_ALWAYS 1

// Within `sync_ms` milliseconds.
#define TODANA_SYNC_EVERY 2

// When the system sees fit.
#define TODANA_SYNC_NEVER 3

// A record that is there already is replaced.
#define TODANA_MERGE_SET 0

// It stays.
#define TODANA_MERGE_ADD 1

// It is replaced; what is missing does not come in.
#define TODANA_MERGE_REPLACE 2

// What comes in is put behind its value.
#define TODANA_MERGE_APPEND 3

// The record stays as it is.
#define TODANA_KEEP 0

// It gets `change->value`; attributes stay.
#define TODANA_PUT 1

// It is replaced by `change->value` and `change->attributes`.
#define TODANA_PUT_WITH 2

// It is removed.
#define TODANA_REMOVE 3

// A distance counts bytes.
#define TODANA_BYTES 0

// A distance counts characters of UTF-8.
#define TODANA_CHARACTERS 1

// The last by their bytes first.
#define TODANA_LEXICAL_DESCENDING 0

// By the decimal number that keys begin with.
#define TODANA_DECIMAL 1

// The reverse of that.
#define TODANA_DECIMAL_DESCENDING 2

// By sort keys that the program makes: todana_stored_key_by().
#define TODANA_BY_SORT_KEY 3

// Values stand alone, as Kyoto Cabinet has them.
#define TODANA_BARE 0

// Five bytes before each value are its expiry, as Kyoto Tycoon has them.
#define TODANA_TIMED 1

// A cursor, for one thread at a time. It holds no lock and survives whatever is written: where its record has been removed, it stands where
// that was, and goes on to the next one. What moves it returns TODANA_NONE where there is no record; it stands nowhere then.
typedef struct todana_cursor todana_cursor;

// An open database, or a snapshot of one. The same handle may be used by any number of threads at once.
typedef struct todana_db todana_db;

// What takes the pairs, or the combined values, that a function emits; only until the function returns, and for its thread alone.
typedef struct todana_emitter todana_emitter;

// An iterator over records, for one thread at a time.
typedef struct todana_iterator todana_iterator;

// The values of one key, one after the other; only until the function returns that is shown them.
typedef struct todana_values todana_values;

// How a database is opened. All zero is right for most.
typedef struct todana_options {
  // A database in memory keeps its data in this directory. NULL: nowhere.
  const char *data_dir;
  // A database in memory takes at most so many bytes. 0: no limit.
  uint64_t memory_max;
  // Not 0: what has no room is refused. 0: other records go for it.
  int refuses_when_full;
  // When writes are on disk, where they are kept there: TODANA_SYNC_SOON, ...
  int sync;
  // For TODANA_SYNC_EVERY.
  uint64_t sync_ms;
  // Not 0: it is opened for reading, beside others that read it, and never beside one that writes. Nothing changes.
  int reads_only;
  // 0.
  uint64_t reserved[3];
} todana_options;

// What a database holds.
typedef struct todana_status {
  // Records, expired ones that nobody has met yet included.
  uint64_t records;
  // Bytes of the records as they are stored.
  uint64_t record_bytes;
  // Bytes of memory that are held for them.
  uint64_t memory_bytes;
  // Records removed to make room, since it was opened.
  uint64_t evictions;
  // Not 0: keys have an order.
  int is_ordered;
} todana_status;

// Bytes somewhere. Where a function takes them, `data` may be NULL if `len` is 0. Where it gives them, to be freed, a NUL that does not count
// stands behind them; not where it shows them. `data` is NULL where there is nothing.
typedef struct todana_bytes {
  const void *data;
  size_t len;
} todana_bytes;

// What rides with a record. All zero: no flags, and it stays.
typedef struct todana_attributes {
  // TODANA_NEVER, TODANA_SECONDS, TODANA_AT or TODANA_SLIDING. What is read is never TODANA_SECONDS.
  int life;
  // The program's own.
  uint32_t flags;
  // As `life` says.
  uint64_t seconds;
} todana_attributes;

// A list of bytes. One that is given is a single piece of memory, bytes and all: todana_free(list.items).
typedef struct todana_list {
  const struct todana_bytes *items;
  size_t len;
} todana_list;

// A record that is shown. All of it belongs to who shows it: copy what you keep. No NUL stands behind these bytes: `len` tells where they end.
typedef struct todana_record {
  struct todana_bytes key;
  struct todana_bytes value;
  struct todana_attributes attributes;
  // The Unix time at which it is gone, as things stand; 0 if never.
  uint64_t expires_at;
} todana_record;

// Is shown a record. todana_each() goes on while it returns 0.
typedef int (*todana_see)(void *context, const struct todana_record *record);

// What a visitor wants to be put. It is copied at once when the visitor returns.
typedef struct todana_change {
  struct todana_bytes value;
  struct todana_attributes attributes;
} todana_change;

// Is shown a record, or NULL where there is none, and returns what becomes of it: TODANA_KEEP, TODANA_PUT, TODANA_PUT_WITH or
// TODANA_REMOVE.
typedef int (*todana_visit)(void *context,
                            struct todana_bytes key,
                            const struct todana_record *record,
                            struct todana_change *change);

// Over which records, and how. All zero: over all of them, forwards.
typedef struct todana_range {
  // The first key; NULL: from the start.
  struct todana_bytes from;
  // The key to stop before; NULL: to the end.
  struct todana_bytes to;
  // The keys that begin so, instead of the two above. NULL: no matter.
  struct todana_bytes prefix;
  // Not 0: `from` itself does not belong to it.
  int without_from;
  // Not 0: `to` itself belongs to it.
  int with_to;
  // Not 0: backwards.
  int backwards;
  // Not 0: values are not wanted, and not copied.
  int only_keys;
} todana_range;

// A list of numbers. One that is given is a single piece of memory: todana_free(numbers.items).
typedef struct todana_numbers {
  const size_t *items;
  size_t len;
} todana_numbers;

// Takes the next piece of a stream, and returns 0 to go on. It must not call the library.
typedef int (*todana_sink)(void *context, struct todana_bytes piece);

// Puts at most `room` bytes of a stream at `piece`, and returns how many; 0 at its end, a negative number if it fails. It must not call the
// library.
typedef ptrdiff_t (*todana_source)(void *context, void *piece, size_t room);

// Is shown some values of a key, or what it has made of others, and emits one value that stands for all of them. Several threads call it at
// once.
typedef void (*todana_combine)(void *context,
                               struct todana_bytes key,
                               struct todana_values *values,
                               struct todana_emitter *emitter);

// How map-reduce works. All zero is right for most.
typedef struct todana_work {
  // So many threads call `map` at once, the caller's among them. 0: as many as there are cores.
  size_t threads;
  // What is emitted takes at most so many bytes of memory, the rest goes to disk. 0: 64 MiB.
  size_t memory_max;
  // Where temporary files go, which have no names. NULL: where the system has them.
  const char *temp_dir;
  // Makes one value of several of a key's before memory runs out: far less goes to disk then. NULL: nothing does.
  todana_combine combine;
  // 0.
  uint64_t reserved[4];
} todana_work;

// Is shown each record, by several threads at once, and emits what it makes of it: todana_emit(). What is not 0 ends it all.
typedef int (*todana_map)(void *context, const struct todana_record *record, struct todana_emitter *emitter);

// Is shown each key that was emitted, in their order, and its values, in none: todana_next_value(). It is called by the thread that called
// todana_map_reduce(). What is not 0 ends it all.
typedef int (*todana_reduce)(void *context, struct todana_bytes key, struct todana_values *values);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What went wrong in the last call of this thread that failed; "" if none has. It stays until the next one fails.
const char *todana_message(void);

// The version of the library.
const char *todana_version(void);

// Gives back the memory of bytes or a list that a function has given. NULL is left alone. It may be called at any time, in a visitor, too.
void todana_free(const void *memory);

// Opens a database by its name (docs/embedding.md): "mem:hash", "mem:tree", "PATH.hash", "PATH.tree" and more. `options` may be NULL.
int todana_open(const char *name,
                const struct todana_options *options,
                struct todana_db **db);

// Closes a database, or a snapshot, once calls that are under way in other threads have ended. A transaction of this thread is aborted;
// iterators and cursors fail with TODANA_CLOSED from now on. It is closed, too, when what was written last cannot be brought to the disk, which
// this returns. TODANA_BUSY: snapshots of it are open, or transactions of other threads, and it stays open. NULL is left alone.
int todana_close(struct todana_db *db);

// A view of the database as it is now, whatever is written later; to be read like a database, and closed by todana_close(). What is changed
// meanwhile is kept in memory, as it was. TODANA_BUSY: this thread has a transaction open.
int todana_snapshot(struct todana_db *db,
                    struct todana_db **snapshot);

// How many records there are, expired ones that nobody has met yet included, and not those of a transaction that is open. Costs no scan.
int todana_count(struct todana_db *db,
                 uint64_t *count);

// What the database holds.
int todana_inform(struct todana_db *db, struct todana_status *status);

// Whether keys have an order: TODANA_OK or TODANA_NONE.
int todana_is_ordered(struct todana_db *db);

// Removes all records. It cannot be part of a transaction.
int todana_clear(struct todana_db *db);

// Returns once all that was written so far is on disk, where it is kept there.
int todana_sync(struct todana_db *db);

// Makes a checkpoint, where there is an update log: the next opening needs no more of that than what comes after.
int todana_checkpoint(struct todana_db *db);

// Copies all records, as they are at one moment, into a database of any kind on disk that is not there yet, and tells how many there are
// (unless `copied` is NULL). The copy is on disk when this returns.
int todana_copy(struct todana_db *db,
                const char *name,
                uint64_t *copied);

// Brings the records of another database into this one, with their attributes, and tells how many came in (unless `merged` is NULL). `mode`:
// TODANA_MERGE_SET, ...
int todana_merge(struct todana_db *db,
                 struct todana_db *source,
                 int mode,
                 uint64_t *merged);

// Writes all records to a file, as tab-separated text with flags and expiry (docs/format/tsv.md), and tells how many (unless `dumped` is
// NULL). A file of this name is replaced.
int todana_dump(struct todana_db *db,
                const char *path,
                uint64_t *dumped);

// Stores the records of such a file, and tells how many (unless `loaded` is NULL). What has expired is left out. TODANA_INVALID: a line is
// none; the message names it, and what came before it may be stored.
int todana_load(struct todana_db *db,
                const char *path,
                uint64_t *loaded);

// The value of a record, for the caller to free. TODANA_NONE: there is none.
int todana_get(struct todana_db *db, struct todana_bytes key, struct todana_bytes *value);

// The same with its attributes and its version, for todana_compare_and_set(). Each but `value` may be NULL. The first time costs a write, as
// a version is made only when it is asked for.
int todana_get_with(struct todana_db *db,
                    struct todana_bytes key,
                    struct todana_bytes *value,
                    struct todana_attributes *attributes,
                    uint64_t *version);

// Whether there is a record: TODANA_OK or TODANA_NONE.
int todana_contains(struct todana_db *db, struct todana_bytes key);

// Stores a record, whatever was there; it stays until it is removed.
int todana_set(struct todana_db *db, struct todana_bytes key, struct todana_bytes value);

// Stores a record with attributes. NULL: none.
int todana_set_with(struct todana_db *db,
                    struct todana_bytes key,
                    struct todana_bytes value,
                    const struct todana_attributes *attributes);

// Stores a record if there is none. TODANA_OTHER: there is one. `attributes` may be NULL.
int todana_add(struct todana_db *db,
               struct todana_bytes key,
               struct todana_bytes value,
               const struct todana_attributes *attributes);

// Stores a record if there is one, in its place. TODANA_NONE: there is none. `attributes` may be NULL: those of before do not stay.
int todana_replace(struct todana_db *db,
                   struct todana_bytes key,
                   struct todana_bytes value,
                   const struct todana_attributes *attributes);

// Puts a piece behind a value; makes the record if there is none.
int todana_append(struct todana_db *db, struct todana_bytes key, struct todana_bytes piece);

// Puts a piece before a value; makes the record if there is none.
int todana_prepend(struct todana_db *db, struct todana_bytes key, struct todana_bytes piece);

// Adds to a decimal number, and tells the sum (unless `sum` is NULL). Where there is no record it is `*initial`, to which nothing is added;
// if that is NULL: TODANA_NONE. TODANA_INVALID: what is there is no number, or the sum leaves the range of 64 bits.
int todana_increment(struct todana_db *db,
                     struct todana_bytes key,
                     int64_t delta,
                     const int64_t *initial,
                     int64_t *sum);

// Adds to a number as Kyoto Cabinet and Kyoto Tycoon store it, 8 bytes with the most significant first, and reports the sum (unless `sum`
// is NULL). Without a record, `origin` is added to. INT64_MAX as `origin` stores `delta` itself, whatever number was there; INT64_MIN
// requires a record: TODANA_NONE. Attributes stay. TODANA_INVALID: the value is not 8 bytes long, or the sum leaves the range of 64 bits.
int todana_increment_binary(struct todana_db *db,
                            struct todana_bytes key,
                            int64_t delta,
                            int64_t origin,
                            int64_t *sum);

// The same for a number with a fraction, in 16 bytes. INFINITY and -INFINITY as `origin` have those meanings.
int todana_increment_double(struct todana_db *db,
                            struct todana_bytes key,
                            double delta,
                            double origin,
                            double *sum);

// Replaces the value if the record is still of this version (todana_get_with()). TODANA_OTHER: somebody has changed it; TODANA_NONE: it is
// gone. The new record has no attributes.
int todana_compare_and_set(struct todana_db *db,
                           struct todana_bytes key,
                           struct todana_bytes value,
                           uint64_t version);

// Puts `*to` (NULL: nothing) in the place of a record if its value is `*from` (NULL: if there is none). TODANA_OTHER: it is not. Attributes
// stay.
int todana_compare_and_swap(struct todana_db *db,
                            struct todana_bytes key,
                            const struct todana_bytes *from,
                            const struct todana_bytes *to);

// Removes a record. TODANA_NONE: there is none.
int todana_remove(struct todana_db *db, struct todana_bytes key);

// Removes a record and gives its value, for the caller to free. TODANA_NONE: there is none.
int todana_seize(struct todana_db *db, struct todana_bytes key, struct todana_bytes *value);

// Gives a record another life; its flags stay. NULL: it stays until it is removed. TODANA_NONE: there is none.
int todana_touch(struct todana_db *db,
                 struct todana_bytes key,
                 const struct todana_attributes *attributes);

// The values of several records, in the order of the keys, for the caller to free: todana_free(values.items). `data` is NULL where there is
// none. If one cannot be read nothing is given, and todana_message() names its key; todana_get() has the others one by one.
int todana_get_many(struct todana_db *db,
                    struct todana_list keys,
                    struct todana_list *values);

// Stores several records, one after the other; within a transaction, as one. There must be as many values as keys.
int todana_set_many(struct todana_db *db,
                    struct todana_list keys,
                    struct todana_list values);

// Removes several records, and tells how many there were (unless `removed` is NULL).
int todana_remove_many(struct todana_db *db, struct todana_list keys, size_t *removed);

// Shows a record where it lies, without a copy. `see` runs under a lock: it must be brief, and whatever it calls here but todana_free() is
// refused with TODANA_BUSY. What it returns does not count. TODANA_NONE: there is no record.
int todana_view(struct todana_db *db,
                struct todana_bytes key,
                todana_see see,
                void *context);

// Runs `visit` on a record and does as it says, atomically: nobody changes the record in between. It may run more than once, and it runs
// under a lock: it must be brief, and whatever it calls here but todana_free() is refused with TODANA_BUSY.
int todana_update(struct todana_db *db,
                  struct todana_bytes key,
                  todana_visit visit,
                  void *context);

// Runs `visit` on each of several records, and does as it says with all of them at once: others see all of it or nothing. If it goes wrong
// nothing is changed, unless it is part of a transaction that this thread has open. What todana_update() says of `visit` holds.
int todana_update_many(struct todana_db *db,
                       struct todana_list keys,
                       todana_visit visit,
                       void *context);

// Runs `visit` on every record and does as it says, each record atomically by itself; reports how many were changed (unless `changed` is
// NULL). Records that come meanwhile are visited or not. If it goes wrong, what was done before stays, unless this thread has a
// transaction open and aborts it. What todana_update() says of `visit` holds.
int todana_update_each(struct todana_db *db,
                       todana_visit visit,
                       void *context,
                       uint64_t *changed);

// Begins a transaction, once no other thread has one open. From now on all that this thread does with the database belongs to it, until
// todana_commit() or todana_abort(); others read what was there before, and wait before they write. A thread that ends aborts it.
// TODANA_BUSY: this thread has one open already.
int todana_begin(struct todana_db *db);

// Makes all changes of this thread's transaction at once, or none if it fails; in either case it is over.
int todana_commit(struct todana_db *db);

// Leaves everything as it was before this thread's transaction.
int todana_abort(struct todana_db *db);

// Opens an iterator. `range` may be NULL: all records. Where keys have no order there are no ranges and no way back: TODANA_INVALID.
// Records are fetched in batches, without a lock in between: what is written meanwhile is shown or not. Within a transaction of the thread it
// shows what that sees.
int todana_iterate(struct todana_db *db,
                   const struct todana_range *range,
                   struct todana_iterator **iterator);

// Shows the next record; it stays where it is until the iterator's next call. TODANA_NONE: there are no more.
int todana_next(struct todana_iterator *iterator, struct todana_record *record);

// Closes an iterator. NULL is left alone.
int todana_iterator_close(struct todana_iterator *iterator);

// Calls `see` with each record of a range (NULL: all) while it returns 0. No lock is held meanwhile: it may call the library.
int todana_each(struct todana_db *db,
                const struct todana_range *range,
                todana_see see,
                void *context);

// Opens a cursor, which stands nowhere at first. Where keys have no order it goes forward only.
int todana_cursor_open(struct todana_db *db, struct todana_cursor **cursor);

// Closes a cursor. NULL is left alone.
int todana_cursor_close(struct todana_cursor *cursor);

// Goes to the first record.
int todana_cursor_first(struct todana_cursor *cursor);

// Goes to the last record.
int todana_cursor_last(struct todana_cursor *cursor);

// Goes to the record of this key or, where keys have an order, the first one behind it.
int todana_cursor_jump(struct todana_cursor *cursor, struct todana_bytes key);

// Goes to the record of this key or the last one before it.
int todana_cursor_jump_back(struct todana_cursor *cursor, struct todana_bytes key);

// Goes to the next record.
int todana_cursor_step(struct todana_cursor *cursor);

// Goes to the record before.
int todana_cursor_step_back(struct todana_cursor *cursor);

// Shows the record where it stands, as it is now; that stays where it is until the cursor's next call. TODANA_NONE: it is gone (its key is
// still shown), or the cursor stands nowhere (then `key.data` is NULL).
int todana_cursor_record(struct todana_cursor *cursor,
                         struct todana_record *record);

// Gives the record there another value; its attributes stay. TODANA_NONE: it is gone.
int todana_cursor_set(struct todana_cursor *cursor, struct todana_bytes value);

// Removes the record there; the cursor stays, and steps from there on. TODANA_NONE: it is gone.
int todana_cursor_remove(struct todana_cursor *cursor);

// The keys that begin with `prefix`, at most `limit` of them; for the caller to free: todana_free(keys.items).
int todana_match_prefix(struct todana_db *db,
                        struct todana_bytes prefix,
                        size_t limit,
                        struct todana_list *keys);

// The keys in which a regular expression matches somewhere, at most `limit` of them; for the caller to free. All keys are looked at.
// TODANA_INVALID: it is no regular expression.
int todana_match_regex(struct todana_db *db,
                       const char *pattern,
                       size_t limit,
                       struct todana_list *keys);

// The keys that are most like `key`, the best first, at most `limit` of them, and, unless `distances` is NULL, how many symbols
// (TODANA_BYTES or TODANA_CHARACTERS) have to be inserted, removed or replaced: at most `distance_max`. Both are for the caller to free. All
// keys are looked at.
int todana_match_similar(struct todana_db *db,
                         struct todana_bytes key,
                         size_t distance_max,
                         int symbols,
                         size_t limit,
                         struct todana_list *keys,
                         struct todana_numbers *distances);

// What a key is stored as, so that ordered databases have it at its place in another order than that of the bytes; for the caller to free.
// `order`: TODANA_LEXICAL_DESCENDING, ... Where a record is read or written, this is its key.
int todana_stored_key(int order,
                      struct todana_bytes key,
                      struct todana_bytes *stored);

// The same for a key that sorts by a sort key, which the program must always make alike; those of one sort key sort by their own bytes.
int todana_stored_key_by(struct todana_bytes sort_key,
                         struct todana_bytes key,
                         struct todana_bytes *stored);

// The key that is stored so; for the caller to free. TODANA_INVALID: the order stores none so.
int todana_original_key(int order, struct todana_bytes stored, struct todana_bytes *key);

// Writes all records, as of one moment, to a file as a snapshot of Kyoto Cabinet's, and reports how many (unless `dumped` is NULL). `values`:
// TODANA_BARE or TODANA_TIMED. A file of this name is replaced once the snapshot is complete and on disk.
int todana_dump_snapshot(struct todana_db *db,
                         const char *path,
                         int values,
                         uint64_t *dumped);

// Stores the records of such a file over those that are there, and reports how many (unless `loaded` is NULL). What has expired is left out.
// TODANA_CORRUPT: the file is damaged or cut; the message says where, and nothing is stored.
int todana_load_snapshot(struct todana_db *db,
                         const char *path,
                         int values,
                         uint64_t *loaded);

// The same as todana_dump_snapshot(), to a stream. TODANA_UNAVAILABLE: `sink` did not return 0.
int todana_stream_snapshot(struct todana_db *db,
                           todana_sink sink,
                           void *context,
                           int values,
                           uint64_t *dumped);

// The same as todana_load_snapshot(), from a stream. If that is damaged or fails, what was read before is stored.
int todana_take_snapshot(struct todana_db *db,
                         todana_source source,
                         void *context,
                         int values,
                         uint64_t *loaded);

// Calls `map` with every record, on several threads at once, and then `reduce` with every key that it has emitted and all its values. No lock
// is held meanwhile: all of them may call the library, and what they share through `context` is theirs to guard. `work` may be NULL.
// TODANA_OTHER: one of them has returned something else than 0. TODANA_BUSY: the thread has a transaction open, which the other threads would
// not see.
int todana_map_reduce(struct todana_db *db,
                      const struct todana_work *work,
                      todana_map map,
                      todana_reduce reduce,
                      void *context);

// Emits a pair, which is copied; from within a `todana_combine`, a value, whatever the key. What goes wrong with that ends todana_map_reduce().
int todana_emit(struct todana_emitter *emitter,
                struct todana_bytes key,
                struct todana_bytes value);

// Shows the next value of a key; it stays where it is until the next call. TODANA_NONE: there are no more.
int todana_next_value(struct todana_values *values, struct todana_bytes *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TODANA_H */

#ifndef TODANA_INLINE
#define TODANA_INLINE
// The bytes of a string, without the NUL.
static inline todana_bytes todana_string(const char *text) {
  todana_bytes bytes;
  bytes.data = text;
  bytes.len = text ? strlen(text) : 0;
  return bytes;
}

// `len` bytes at `data`.
static inline todana_bytes todana_span(const void *data, size_t len) {
  todana_bytes bytes;
  bytes.data = data;
  bytes.len = len;
  return bytes;
}
#endif
