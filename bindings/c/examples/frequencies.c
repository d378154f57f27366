// Counts the words of its input by map-reduce, and prints the most frequent ones.
//
//     cc frequencies.c -o frequencies $(pkg-config --cflags --libs todana)
//     ./frequencies < book.txt
//
// The lines are records of a database. Several threads call count_words() with them at once, so it
// keeps no state. sum() combines several counts of a word into one before memory runs out. rank()
// gets the final counts.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <todana.h>

static void must(int code) {
  if (code < 0) {
    fprintf(stderr, "frequencies: %s\n", todana_message());
    exit(1);
  }
}

static int count_words(void *context, const todana_record *record, todana_emitter *emitter) {
  const unsigned char *text = record->value.data;
  const uint64_t one = 1;
  char word[64];
  size_t len = 0;
  (void)context;
  for (size_t at = 0; at <= record->value.len; at++) {
    if (at < record->value.len && isalnum(text[at])) {
      if (len < sizeof word) word[len++] = (char)tolower(text[at]);
    } else if (len > 0) {
      if (todana_emit(emitter, todana_span(word, len), todana_span(&one, sizeof one)) < 0) return 1;
      len = 0;
    }
  }
  return 0;
}

static uint64_t added(todana_values *values) {
  uint64_t sum = 0, number;
  todana_bytes value;
  while (todana_next_value(values, &value) == TODANA_OK) {
    memcpy(&number, value.data, sizeof number);
    sum += number;
  }
  return sum;
}

static void sum(void *context, todana_bytes word, todana_values *values, todana_emitter *emitter) {
  const uint64_t count = added(values);
  (void)context;
  todana_emit(emitter, word, todana_span(&count, sizeof count));
}

struct found {
  unsigned long long words, counts[3];
  char most[3][64];
};

// Words arrive in their order, so that of equally frequent words the first one is kept.
static int rank(void *context, todana_bytes word, todana_values *values) {
  struct found *found = context;
  const unsigned long long count = added(values);
  int place = 3;
  found->words++;
  while (place > 0 && count > found->counts[place - 1]) place--;
  for (int below = 2; below > place; below--) {
    found->counts[below] = found->counts[below - 1];
    memcpy(found->most[below], found->most[below - 1], sizeof found->most[below]);
  }
  if (place < 3) {
    found->counts[place] = count;
    snprintf(found->most[place], sizeof found->most[place], "%.*s", (int)word.len, (const char *)word.data);
  }
  return 0;
}

int main(void) {
  todana_db *db;
  todana_work work = {0};
  struct found found = {0};
  char line[4096], key[24];
  must(todana_open("mem:hash", NULL, &db));
  for (unsigned long number = 0; fgets(line, sizeof line, stdin); number++) {
    snprintf(key, sizeof key, "%lu", number);
    must(todana_set(db, todana_string(key), todana_string(line)));
  }
  work.combine = sum;
  must(todana_map_reduce(db, &work, count_words, rank, &found));
  printf("%llu different words\n", found.words);
  for (int place = 0; place < 3 && found.counts[place] > 0; place++)
    printf("%6llu %s\n", found.counts[place], found.most[place]);
  must(todana_close(db));
  return 0;
}
