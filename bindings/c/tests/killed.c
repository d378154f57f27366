// A killed process loses no write for which todana_set() has returned, even if nothing was synced.
// Earlier versions lost all writes since the last sync, up to --sync or sync_ms.
// `cargo xtask test` runs this program, with and without AddressSanitizer. Its argument is an empty
// folder for its files.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <todana.h>
#include <unistd.h>

#define KINDS 4
#define ROUNDS 3

static const char *folder;

#define CHECK(what)                                                                                \
  do {                                                                                             \
    if (!(what)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s\n  message: %s\n", __FILE__, __LINE__, #what, todana_message()); \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

#define S(text) todana_string(text)

static todana_db *opened(int kind) {
  static const char *const names[KINDS] = {"%s/killed.hash", "%s/killed.tree", "mem:hash", "mem:tree"};
  static const char *const data_dirs[KINDS] = {NULL, NULL, "%s/killed-hash", "%s/killed-tree"};
  char name[4096], data_dir[4096];
  todana_options options = {0};
  todana_db *db = NULL;
  snprintf(name, sizeof name, names[kind], folder);
  // The interval is an hour, so that no write is synced during the test.
  options.sync = TODANA_SYNC_EVERY;
  options.sync_ms = 3600 * 1000;
  if (data_dirs[kind]) {
    snprintf(data_dir, sizeof data_dir, data_dirs[kind], folder);
    options.data_dir = data_dir;
  }
  CHECK(todana_open(name, &options, &db) == TODANA_OK && db != NULL);
  return db;
}

static void text_of(char text[64], const char *what, unsigned long number) {
  snprintf(text, 64, "%s %lu", what, number);
}

// Writes records until it is killed, and reports the number of records after each.
static void writes_on(int kind, unsigned long from, int says) {
  todana_db *db = opened(kind);
  for (unsigned long number = from + 1;; number++) {
    char key[64], value[64];
    text_of(key, "key", number);
    text_of(value, "value", number);
    CHECK(todana_set(db, S(key), S(value)) == TODANA_OK);
    // This write fails after the parent has closed the pipe.
    if (write(says, &number, sizeof number) != sizeof number) exit(1);
  }
}

static int has(todana_db *db, unsigned long number) {
  char key[64], value[64];
  todana_bytes found;
  text_of(key, "key", number);
  text_of(value, "value", number);
  int code = todana_get(db, S(key), &found);
  if (code == TODANA_NONE) return 0;
  CHECK(code == TODANA_OK && found.len == strlen(value) && memcmp(found.data, value, found.len) == 0);
  todana_free(found.data);
  return 1;
}

// Kills a process during its writes and returns the number of acknowledged writes.
static unsigned long killed_once(int kind, unsigned long from, unsigned long wanted) {
  int pipe_ends[2], status = -1;
  unsigned long said = from;
  CHECK(pipe(pipe_ends) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(pipe_ends[0]);
    writes_on(kind, from, pipe_ends[1]);
  }
  close(pipe_ends[1]);
  while (said < from + wanted) CHECK(read(pipe_ends[0], &said, sizeof said) == sizeof said);
  CHECK(kill(child, SIGKILL) == 0);
  while (read(pipe_ends[0], &said, sizeof said) == sizeof said) {
  }
  close(pipe_ends[0]);
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

  todana_db *db = opened(kind);
  for (unsigned long number = 1; number <= said; number++) CHECK(has(db, number));
  // The write in progress at the kill may be stored; no later record may exist.
  said += has(db, said + 1);
  uint64_t count = 0;
  CHECK(todana_count(db, &count) == TODANA_OK && count == said && todana_close(db) == TODANA_OK);
  return said;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  folder = argv[1];
  for (int kind = 0; kind < KINDS; kind++) {
    unsigned long there = 0;
    for (int round = 0; round < ROUNDS; round++) there = killed_once(kind, there, 500 + 333 * (unsigned long)round);
  }
  puts("all checks passed");
  return 0;
}
