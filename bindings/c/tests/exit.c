// At the end of a process, functions registered with atexit() can still write and close its
// databases, and so can static destructors of C++. The thread-local data of the main thread no
// longer exists then. `cargo xtask test` runs this program, with and without AddressSanitizer. Its
// argument is an empty folder for its files.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <todana.h>
#include <unistd.h>

#define KINDS 3

static const char *folder;
static todana_db *open_ones[KINDS];

// A failure calls _exit(), because exit() must not be called while the process ends.
#define CHECK(what)                                                                                \
  do {                                                                                             \
    if (!(what)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s\n  message: %s\n", __FILE__, __LINE__, #what, todana_message()); \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

#define S(text) todana_string(text)

static todana_db *opened(int kind) {
  static const char *const names[KINDS] = {"%s/late.hash", "%s/late.tree", "mem:tree"};
  char name[4096], data_dir[4096];
  todana_options options = {0};
  todana_db *db = NULL;
  snprintf(name, sizeof name, names[kind], folder);
  snprintf(data_dir, sizeof data_dir, "%s/kept", folder);
  if (kind == 2) options.data_dir = data_dir;
  CHECK(todana_open(name, &options, &db) == TODANA_OK && db != NULL);
  return db;
}

static int has(todana_db *db, const char *key, const char *value) {
  todana_bytes found;
  int code = todana_get(db, S(key), &found);
  int is_so = value ? code == TODANA_OK && found.len == strlen(value) && memcmp(found.data, value, found.len) == 0
                    : code == TODANA_NONE;
  todana_free(found.data);
  return is_so;
}

static int put_late(void *context, todana_bytes key, const todana_record *record, todana_change *change) {
  (void)context, (void)key, (void)record;
  change->value = S("late");
  return TODANA_PUT;
}

static void closes(void) {
  for (int kind = 0; kind < KINDS; kind++) {
    todana_db *db = open_ones[kind];
    todana_bytes pair[] = {S("x"), S("y")};
    todana_list both = {pair, 2};
    CHECK(has(db, "early", "1") && has(db, "open", NULL));
    CHECK(todana_set(db, S("late"), S("2")) == TODANA_OK && has(db, "late", "2"));
    CHECK(todana_update_many(db, both, put_late, NULL) == TODANA_OK);
    // A transaction that begins now is refused, because no code would end it.
    CHECK(todana_begin(db) == TODANA_INVALID && strlen(todana_message()) > 0);
    CHECK(todana_commit(db) == TODANA_INVALID);
    CHECK(todana_close(db) == TODANA_OK && todana_close(db) == TODANA_CLOSED);
  }
}

static void writes_and_ends(void) {
  for (int kind = 0; kind < KINDS; kind++) {
    open_ones[kind] = opened(kind);
    CHECK(todana_set(open_ones[kind], S("early"), S("1")) == TODANA_OK);
    CHECK(todana_begin(open_ones[kind]) == TODANA_OK);
    CHECK(todana_set(open_ones[kind], S("open"), S("1")) == TODANA_OK);
    CHECK(todana_commit(NULL) == TODANA_INVALID);
  }
  CHECK(atexit(closes) == 0);
  exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  folder = argv[1];
  int status = -1;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) writes_and_ends();
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (int kind = 0; kind < KINDS; kind++) {
    todana_db *db = opened(kind);
    uint64_t count = 0;
    CHECK(has(db, "early", "1") && has(db, "late", "2") && has(db, "x", "late") && has(db, "y", "late"));
    CHECK(todana_count(db, &count) == TODANA_OK && count == 4 && todana_close(db) == TODANA_OK);
  }
  puts("all checks passed");
  return 0;
}
