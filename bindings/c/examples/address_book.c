// Keeps an address book in a table and searches it.
//
//     cc address_book.c -o address_book $(pkg-config --cflags --libs todana)
//     ./address_book people.table < people.tsv    # adds people: name, town and note in a line
//     ./address_book people.table Oslo            # prints the people of a town, ordered by name
#include <stdio.h>
#include <stdlib.h>
#include <todana.h>

static void must(int code) {
  if (code < 0) {
    fprintf(stderr, "address_book: %s\n", todana_message());
    exit(1);
  }
}

static void add(todana_db *db, char *line) {
  char *town = strchr(line, '\t'), *note = town ? strchr(town + 1, '\t') : NULL, digits[20];
  uint64_t number;
  if (!note) return;
  *town++ = 0;
  *note++ = 0;
  note[strcspn(note, "\n")] = 0;
  todana_bytes columns[6] = {todana_string("name"), todana_string(line),
                             todana_string("town"), todana_string(town),
                             todana_string("note"), todana_string(note)};
  todana_list row = {columns, 6};
  must(todana_table_new_number(db, &number));
  must(todana_table_put(db, todana_number(number, digits), row));
}

static void print_people(todana_db *db, const char *town) {
  todana_query *query;
  todana_search *search;
  todana_bytes key;
  todana_list row;
  must(todana_query_open(&query));
  must(todana_query_where(query, todana_string("town"), "STREQ", todana_string(town)));
  must(todana_query_order(query, todana_string("name"), "STRASC"));
  must(todana_search_open(db, query, 0, &search));
  int code;
  while ((code = todana_search_next(search, &key, &row)) == TODANA_OK) {
    printf("%s: %s\n", (const char *)todana_column(row, "name").data, (const char *)todana_column(row, "note").data);
    todana_free(key.data);
    todana_free(row.items);
  }
  must(code);
  must(todana_search_close(search));
  must(todana_query_close(query));
}

int main(int argc, char **argv) {
  todana_db *db;
  char line[4096];
  must(todana_open(argc > 1 ? argv[1] : "mem:table", NULL, &db));
  must(todana_table_set_index(db, todana_string("town"), TODANA_INDEX_LEXICAL));
  if (argc < 3)
    while (fgets(line, sizeof line, stdin)) add(db, line);
  for (int word = 2; word < argc; word++) print_people(db, argv[word]);
  must(todana_close(db));
  return 0;
}
