// Counts the words of its input in a database, and prints the most frequent ones.
//
//     cc word_count.c -o word_count $(pkg-config --cflags --libs todana)
//     ./word_count words.tree < book.txt
//
// A line is counted completely or not at all, because its words are added in one transaction. If
// the program is called again with another text, it adds to the stored counts.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <todana.h>

static void must(int code) {
  if (code < 0) {
    fprintf(stderr, "word_count: %s\n", todana_message());
    exit(1);
  }
}

static void count_line(todana_db *db, char *line) {
  const int64_t one = 1;
  must(todana_begin(db));
  for (char *word = line; *word;) {
    size_t len = 0;
    for (; isalnum((unsigned char)word[len]); len++) word[len] = (char)tolower((unsigned char)word[len]);
    if (len > 0) must(todana_increment(db, todana_span(word, len), 1, &one, NULL));
    word += len > 0 ? len : 1;
  }
  must(todana_commit(db));
}

struct most {
  long count;
  char word[64];
};

// Receives every word and its count. Keeps the three most frequent words.
static int rank(void *context, const todana_record *record) {
  struct most *most = context, found;
  char digits[24];
  snprintf(digits, sizeof digits, "%.*s", (int)record->value.len, (const char *)record->value.data);
  found.count = atol(digits);
  snprintf(found.word, sizeof found.word, "%.*s", (int)record->key.len, (const char *)record->key.data);
  for (int place = 0; place < 3; place++) {
    if (found.count > most[place].count) {
      struct most other = most[place];
      most[place] = found;
      found = other;
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  todana_db *db;
  uint64_t words;
  char line[4096];
  struct most most[3] = {{0}};
  must(todana_open(argc > 1 ? argv[1] : "mem:tree", NULL, &db));
  while (fgets(line, sizeof line, stdin)) count_line(db, line);
  must(todana_each(db, NULL, rank, most));
  must(todana_count(db, &words));
  printf("%llu different words\n", (unsigned long long)words);
  for (int place = 0; place < 3 && most[place].count > 0; place++)
    printf("%6ld %s\n", most[place].count, most[place].word);
  must(todana_close(db));
  return 0;
}
