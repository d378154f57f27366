// Tests tables, queries, databases of numbers, and several values of a key.
// Run by cargo xtask test, with and without AddressSanitizer. Takes an empty folder for its files.
#include <stdio.h>
#include <stdlib.h>
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
  char place[4096];
  if (strncmp(name, "mem:", 4) != 0) {
    snprintf(place, sizeof place, "%s/%s", folder, name);
    name = place;
  }
  CHECK(todana_open(name, NULL, &db) == TODANA_OK && db != NULL);
  return db;
}

// Returns the columns "name", "age" and "about" as a list. The list is valid until the next call.
static todana_list row(const char *name, const char *age, const char *about) {
  static todana_bytes items[6];
  items[0] = S("name"), items[1] = S(name), items[2] = S("age"), items[3] = S(age);
  items[4] = S("about"), items[5] = S(about);
  todana_list list = {items, 6};
  return list;
}

static void fill(todana_db *db) {
  CHECK(todana_table_put(db, S("ann"), row("Ann", "33", "Plays chess in Oslo")) == TODANA_OK);
  CHECK(todana_table_add(db, S("bob"), row("Bob", "25", "Has a dog")) == TODANA_OK);
  CHECK(todana_table_add_columns(db, S("zed"), row("Zed", "40", "Teaches chess")) == TODANA_OK);
}

// Returns true if a column of a row has this value, or for NULL if the row lacks the column.
static int has(todana_db *db, const char *key, const char *column, const char *value) {
  todana_list columns;
  int code = todana_table_get(db, S(key), &columns);
  todana_bytes found = todana_column(columns, column);
  int is_so = value ? code == TODANA_OK && is(found, value) : found.data == NULL;
  todana_free(columns.items);
  return is_so;
}

static todana_query *query_for(const char *column, const char *operator_name, const char *expression) {
  todana_query *query;
  CHECK(todana_query_open(&query) == TODANA_OK);
  CHECK(todana_query_where(query, S(column), operator_name, S(expression)) == TODANA_OK);
  return query;
}

// Returns the keys that a query finds, separated by spaces.
static const char *keys(todana_db *db, todana_query *query) {
  static char found[4096];
  todana_search *search;
  todana_bytes key;
  int code;
  found[0] = 0;
  CHECK(todana_search_open(db, query, 1, &search) == TODANA_OK);
  while ((code = todana_search_next(search, &key, NULL)) == TODANA_OK) {
    if (found[0]) strcat(found, " ");
    strcat(found, key.data);
    todana_free(key.data);
  }
  CHECK(code == TODANA_NONE && key.data == NULL);
  CHECK(todana_search_close(search) == TODANA_OK);
  return found;
}

static void rows_have_columns(const char *name) {
  todana_db *db = opened(name);
  todana_list columns;
  uint64_t first, second;
  fill(db);
  CHECK(has(db, "ann", "name", "Ann") && has(db, "ann", "age", "33") && has(db, "ann", "town", NULL));
  CHECK(todana_table_add(db, S("ann"), row("x", "y", "z")) == TODANA_OTHER && has(db, "ann", "name", "Ann"));
  todana_bytes more[4] = {S("age"), S("99"), S("town"), S("Oslo")};
  todana_list added = {more, 4}, odd = {more, 3};
  CHECK(todana_table_add_columns(db, S("ann"), added) == TODANA_OK);
  CHECK(has(db, "ann", "age", "33") && has(db, "ann", "town", "Oslo"));
  CHECK(todana_table_put(db, S("ann"), odd) == TODANA_INVALID && says("no value"));
  CHECK(todana_table_put(db, S(""), added) == TODANA_INVALID && says("key is empty"));
  CHECK(todana_table_get(db, S("none"), &columns) == TODANA_NONE && columns.items == NULL && columns.len == 0);
  CHECK(todana_table_new_number(db, &first) == TODANA_OK);
  CHECK(todana_table_new_number(db, &second) == TODANA_OK && second > first);
  CHECK(todana_remove(db, S("bob")) == TODANA_OK && has(db, "bob", "name", NULL));
  CHECK(todana_close(db) == TODANA_OK);

  db = opened("mem:hash");
  CHECK(todana_table_put(db, S("k"), added) == TODANA_INVALID && says("is not a table"));
  CHECK(todana_table_get(db, S("k"), &columns) == TODANA_INVALID);
  CHECK(todana_fixed_limits(db, NULL, NULL) == TODANA_INVALID && says("are not numbers"));
  CHECK(todana_get_values(db, S("k"), &columns) == TODANA_INVALID && says("one value"));
  CHECK(todana_close(db) == TODANA_OK);
}

static void queries_find_rows(const char *name) {
  todana_db *db = opened(name);
  todana_query *query = query_for("age", "NUMGE", "30"), *chess, *other;
  todana_search *search;
  todana_bytes key, hint;
  todana_list columns;
  todana_numbers kinds;
  uint64_t count;
  fill(db);
  CHECK(todana_table_set_index(db, S("age"), TODANA_INDEX_DECIMAL) == TODANA_OK);
  CHECK(todana_table_set_index(db, S("about"), TODANA_INDEX_QGRAM) == TODANA_OK);
  CHECK(todana_table_set_index(db, S("name"), TODANA_INDEX_LEXICAL) == TODANA_OK);
  CHECK(todana_table_set_index(db, S("name"), TODANA_INDEX_NONE) == TODANA_OK);
  CHECK(todana_table_set_index(db, S("name"), 9) == TODANA_INVALID);
  CHECK(todana_table_finish_indexes(db) == TODANA_OK);
  CHECK(todana_table_indexes(db, &columns, &kinds) == TODANA_OK && columns.len == 2 && kinds.len == 2);
  CHECK(is(columns.items[0], "age") && kinds.items[0] == TODANA_INDEX_DECIMAL);
  todana_free(columns.items);
  todana_free(kinds.items);

  CHECK(todana_query_where(query, S("about"), "ftsph", S("chess")) == TODANA_OK);
  CHECK(todana_query_order(query, S("age"), "NUMDESC") == TODANA_OK);
  CHECK(strcmp(keys(db, query), "zed ann") == 0);
  CHECK(todana_query_count(db, query, &count) == TODANA_OK && count == 2);
  CHECK(todana_query_limit(query, 10, 1) == TODANA_OK);
  CHECK(todana_search_open(db, query, 0, &search) == TODANA_OK);
  CHECK(todana_search_next(search, &key, &columns) == TODANA_OK && is(key, "ann"));
  CHECK(columns.len == 6 && is(todana_column(columns, "name"), "Ann"));
  todana_free(key.data);
  todana_free(columns.items);
  CHECK(todana_search_next(search, &key, &columns) == TODANA_NONE && columns.items == NULL);
  CHECK(todana_search_hint(search, &hint) == TODANA_OK && strstr(hint.data, "using an index: \"age\""));
  todana_free(hint.data);
  CHECK(todana_close(db) == TODANA_BUSY && says("searches"));
  CHECK(todana_search_close(search) == TODANA_OK);
  CHECK(todana_search_next(search, &key, NULL) == TODANA_CLOSED);
  CHECK(todana_query_where(query, S("age"), "above", S("3")) == TODANA_INVALID && says("no operator"));
  CHECK(todana_query_order(query, S("age"), "up") == TODANA_INVALID && says("no order"));
  CHECK(todana_query_order(query, S("age"), NULL) == TODANA_INVALID);
  CHECK(todana_query_close(query) == TODANA_OK && todana_query_count(db, query, &count) == TODANA_CLOSED);

  query = query_for("age", "~+NUMGE", "40");
  CHECK(strcmp(keys(db, query), "ann bob") == 0);
  chess = query_for("about", "STRINC", "chess");
  other = query_for("", "STREQ", "bob");
  CHECK(todana_query_combine(query, TODANA_INTERSECTION, chess) == TODANA_OK);
  CHECK(strcmp(keys(db, query), "ann") == 0);
  CHECK(todana_query_combine(query, TODANA_UNION, other) == TODANA_INVALID);
  CHECK(todana_query_combine(chess, TODANA_UNION, other) == TODANA_OK);
  CHECK(strcmp(keys(db, chess), "ann zed bob") == 0);
  CHECK(todana_query_combine(other, TODANA_UNION, chess) == TODANA_INVALID);

  CHECK(todana_begin(db) == TODANA_OK);
  CHECK(todana_table_put(db, S("dan"), row("Dan", "1", "chess")) == TODANA_OK && has(db, "dan", "age", "1"));
  CHECK(todana_query_count(db, query, &count) == TODANA_BUSY && says("transaction"));
  CHECK(todana_search_open(db, query, 0, &search) == TODANA_BUSY);
  CHECK(todana_table_new_number(db, &count) == TODANA_BUSY);
  CHECK(todana_abort(db) == TODANA_OK && has(db, "dan", "age", NULL));

  CHECK(todana_query_remove(db, query, &count) == TODANA_OK && count == 1 && has(db, "ann", "name", NULL));
  CHECK(todana_query_remove(db, chess, NULL) == TODANA_OK && strcmp(keys(db, chess), "") == 0);
  CHECK(todana_query_close(query) == TODANA_OK && todana_query_close(chess) == TODANA_OK);
  CHECK(todana_query_close(other) == TODANA_OK && todana_query_close(NULL) == TODANA_OK);
  CHECK(todana_close(db) == TODANA_OK);
}

static void snippets_show_words(void) {
  todana_query *query = query_for("about", "FTSPH", "chess");
  todana_snippets style = {0};
  todana_list found;
  CHECK(todana_query_snippets(query, S("about"), S("Plays Chess"), NULL, &found) == TODANA_OK);
  CHECK(found.len == 1 && is(found.items[0], "Plays [Chess]"));
  todana_free(found.items);
  style.width = 3;
  style.before = "<b>";
  style.after = "</b>";
  CHECK(todana_query_snippets(query, S("about"), S("Plays chess in Oslo"), &style, &found) == TODANA_OK);
  CHECK(found.len == 1 && is(found.items[0], "ys <b>chess</b> in"));
  todana_free(found.items);
  CHECK(todana_query_snippets(query, S("about"), S("none"), &style, &found) == TODANA_OK && found.len == 0);
  todana_free(found.items);
  style.leads = 1;
  CHECK(todana_query_snippets(query, S("about"), S("none"), &style, &found) == TODANA_OK && found.len == 1);
  todana_free(found.items);
  CHECK(todana_query_close(query) == TODANA_OK);
}

static void search_reads_many_rows_during_changes(void) {
  todana_db *db = opened("mem:table");
  todana_query *all;
  todana_search *search;
  todana_bytes key, text = S("n");
  todana_list columns;
  char name[16];
  int rows = 0;
  for (int number = 0; number < 3000; number++) {
    todana_bytes items[2] = {text, S("1")};
    todana_list one = {items, 2};
    snprintf(name, sizeof name, "%04d", number);
    CHECK(todana_table_put(db, S(name), one) == TODANA_OK);
  }
  CHECK(todana_query_open(&all) == TODANA_OK && todana_search_open(db, all, 0, &search) == TODANA_OK);
  CHECK(todana_query_close(all) == TODANA_OK);
  while (todana_search_next(search, &key, &columns) == TODANA_OK) {
    snprintf(name, sizeof name, "%04d", rows++);
    CHECK(is(key, name) && columns.len == 2);
    CHECK(todana_remove(db, key) == TODANA_OK);
    todana_free(key.data);
    todana_free(columns.items);
  }
  CHECK(rows == 3000 && todana_search_close(search) == TODANA_OK && todana_close(db) == TODANA_OK);
}

static int collect(void *context, const todana_record *record) {
  char *text = context;
  if (strlen(text) > 20) return 1;
  strncat(text, record->key.data, record->key.len);
  strcat(text, "=");
  strncat(text, record->value.data, record->value.len);
  strcat(text, " ");
  return 0;
}

static int count_one(void *context, const todana_record *record) {
  (void)record;
  ++*(int *)context;
  return 0;
}

static void numbers_are_keys(const char *name) {
  todana_db *db = opened(name);
  char digits[20], text[64] = "";
  size_t width;
  uint64_t number, number_max;
  int count = 0;
  CHECK(todana_fixed_limits(db, &width, &number_max) == TODANA_OK && width == 8 && number_max > 1000);
  CHECK(todana_fixed_number(db, S("max"), &number) == TODANA_NONE);
  CHECK(todana_set(db, todana_number(10, digits), S("ten")) == TODANA_OK);
  CHECK(todana_fixed_add(db, S("eleven"), 0, &number) == TODANA_OK && number == 11);
  CHECK(todana_fixed_add(db, S("nine"), 1, &number) == TODANA_OK && number == 9);
  CHECK(todana_fixed_number(db, S("min"), &number) == TODANA_OK && number == 9);
  CHECK(todana_fixed_add(db, S("longer than 8"), 0, NULL) == TODANA_INVALID);
  CHECK(todana_set(db, todana_number(number_max + 1, digits), S("x")) == TODANA_INVALID);
  CHECK(todana_fixed_each(db, 10, 20, 0, collect, text) == TODANA_OK && strcmp(text, "10=ten 11=eleven ") == 0);
  text[0] = 0;
  CHECK(todana_fixed_each(db, 1, UINT64_MAX, 1, collect, text) == TODANA_OK);
  CHECK(strcmp(text, "11=eleven 10=ten 9=nine ") == 0);
  CHECK(todana_begin(db) == TODANA_OK && todana_fixed_add(db, S("x"), 0, NULL) == TODANA_BUSY);
  CHECK(todana_abort(db) == TODANA_OK);
  for (number = 1; number <= 2000; number++) CHECK(todana_set(db, todana_number(number, digits), S("x")) == TODANA_OK);
  CHECK(todana_fixed_each(db, 0, UINT64_MAX, 0, count_one, &count) == TODANA_OK && count == 2000);
  CHECK(todana_fixed_each(db, 0, UINT64_MAX, 1, count_one, &count) == TODANA_OK && count == 4000);
  CHECK(todana_close(db) == TODANA_OK);
}

static void key_has_several_values(const char *name) {
  todana_db *db = opened(name), *snapshot;
  todana_list values;
  CHECK(todana_add_value(db, S("k"), S("b"), 0) == TODANA_OK);
  CHECK(todana_add_value(db, S("k"), S("c"), 0) == TODANA_OK);
  CHECK(todana_add_value(db, S("k"), S("a"), 1) == TODANA_OK);
  CHECK(todana_get_values(db, S("k"), &values) == TODANA_OK && values.len == 3);
  CHECK(is(values.items[0], "a") && is(values.items[1], "b") && is(values.items[2], "c"));
  todana_free(values.items);
  CHECK(todana_snapshot(db, &snapshot) == TODANA_OK);
  CHECK(todana_remove(db, S("k")) == TODANA_OK);
  CHECK(todana_get_values(db, S("k"), &values) == TODANA_OK && values.len == 2 && is(values.items[0], "b"));
  todana_free(values.items);
  CHECK(todana_get_values(snapshot, S("k"), &values) == TODANA_OK && values.len == 3);
  todana_free(values.items);
  CHECK(todana_close(snapshot) == TODANA_OK);
  CHECK(todana_remove_values(db, S("k")) == TODANA_OK && todana_remove_values(db, S("k")) == TODANA_NONE);
  CHECK(todana_get_values(db, S("k"), &values) == TODANA_NONE && values.items == NULL);
  CHECK(todana_close(db) == TODANA_OK);
}

int main(int argc, char **argv) {
  folder = argc > 1 ? argv[1] : ".";
  rows_have_columns("mem:table");
  rows_have_columns("rows.table");
  queries_find_rows("mem:table");
  queries_find_rows("queries.table");
  snippets_show_words();
  search_reads_many_rows_during_changes();
  numbers_are_keys("mem:fixed#width=8");
  numbers_are_keys("numbers.fixed#width=8");
  key_has_several_values("mem:tree");
  key_has_several_values("values.tree");
  printf("ok\n");
  return 0;
}
