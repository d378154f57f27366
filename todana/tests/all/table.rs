//! Queries on tables, compared with a plain evaluation over all rows.

use crate::table_indexes;

use proptest::prelude::*;
use proptest::sample::select;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use todana::table::{
    Condition, ConditionOperator, IndexKind, Query, QueryOrder, Row, SearchOptions, SetOperation, Table,
};
use todana::{Db, ErrorKind, Records, Ttl};

const COLUMNS: [&str; 4] = ["", "age", "name", "text"];
const TEXTS: [&str; 22] = [
    "",
    " ",
    "a",
    "b",
    "ab",
    "a b",
    "b,a",
    "abc",
    "aba bab",
    "Hello World",
    "hello  there",
    "École de Paris",
    "ecole",
    "5",
    "-3.5",
    "12 apples",
    "1e3",
    "inf",
    "5.0",
    "12",
    "0x10",
    "red,green blue",
];
const ORDERS: [QueryOrder; 4] = [
    QueryOrder::TextAscending,
    QueryOrder::TextDescending,
    QueryOrder::NumberAscending,
    QueryOrder::NumberDescending,
];

type Rows = BTreeMap<Vec<u8>, Vec<(&'static str, &'static str)>>;

fn rows() -> impl Strategy<Value = Rows> {
    let key = (0..60u8).prop_map(|number| match number {
        50.. => TEXTS[usize::from(number) - 40].as_bytes().to_vec(),
        _ => number.to_string().into_bytes(),
    });
    let column = || select(&COLUMNS[1..]);
    let row = prop::collection::btree_map(column(), select(&TEXTS[..]), 0..4);
    prop::collection::btree_map(key, row.prop_map(|row| row.into_iter().collect()), 0..50)
}

fn condition() -> impl Strategy<Value = Condition> {
    let parts = (select(&COLUMNS[..]), select(&ConditionOperator::ALL[..]), select(&TEXTS[..]), 0..10u8);
    parts.prop_map(|(column, operator, text, flags)| {
        let condition = Condition::new(column.as_bytes(), operator, text.as_bytes());
        match flags {
            0 | 1 => condition.negated(),
            2 => condition.without_index(),
            _ => condition,
        }
    })
}

fn query() -> impl Strategy<Value = Query> {
    let order = prop::option::of((select(&COLUMNS[..]), select(&ORDERS[..])));
    let limit = prop::option::of(0..12u64);
    (prop::collection::vec(condition(), 0..3), order, limit, 0..4u64).prop_map(
        |(conditions, order, limit, skip)| {
            let order = order.map(|(column, order)| (column.as_bytes().to_vec(), order));
            Query { conditions, order, limit, skip }
        },
    )
}

fn indexes() -> impl Strategy<Value = Vec<(&'static str, IndexKind)>> {
    let index = (select(&COLUMNS[..]), select(&IndexKind::ALL[..]));
    prop::collection::btree_map(0..4usize, index, 0..5).prop_map(|all| all.into_values().collect())
}

fn table(rows: &Rows, indexes: &[(&str, IndexKind)], are_first: bool) -> Table {
    let table = Table::new(&Db::open("mem:table").unwrap()).unwrap();
    let define = || {
        indexes.iter().for_each(|(column, kind)| table.set_index(column.as_bytes(), Some(*kind)).unwrap());
    };
    if are_first {
        define();
    }
    for (key, row) in rows.iter().filter(|(key, _)| !key.is_empty()) {
        table.put(key, row).unwrap();
    }
    if !are_first {
        define();
    }
    table.finish_indexes();
    table
}

fn text<'r>(key: &'r [u8], row: &'r [(&str, &str)], column: &[u8]) -> Option<&'r [u8]> {
    if column.is_empty() {
        return Some(key);
    }
    row.iter().find(|(name, _)| name.as_bytes() == column).map(|(_, text)| text.as_bytes())
}

/// Returns the order of two rows, without regard to those that are equal.
fn compare(one: Option<&[u8]>, other: Option<&[u8]>, order: QueryOrder) -> Ordering {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none().cmp(&other.is_none()) };
    let number = todana_engine::table::number;
    let by = match order.is_numeric() {
        true => number(one).partial_cmp(&number(other)).unwrap(),
        false => one.cmp(other),
    };
    if order.is_descending() { by.reverse() } else { by }
}

/// A row satisfies a condition if a table of this row alone, without indexes, finds it. The tests
/// beside `Condition` compare that with Tokyo Cabinet.
fn satisfies(key: &[u8], row: &[(&str, &str)], conditions: &[Condition]) -> bool {
    thread_local!(static ALONE: Table = table(&Rows::new(), &[], true));
    ALONE.with(|alone| {
        alone.db().clear().unwrap();
        alone.put(key, row).unwrap();
        let query = Query { conditions: conditions.to_vec(), ..Query::new() };
        alone.count(&query).unwrap() == 1
    })
}

fn keys(found: impl Iterator<Item = todana::Result<(Vec<u8>, Row)>>) -> Vec<Vec<u8>> {
    found.map(|found| found.unwrap().0).collect()
}

fn check(table: &Table, rows: &Rows, query: &Query) {
    let matching: Vec<&Vec<u8>> = rows
        .iter()
        .filter(|(key, row)| !key.is_empty() && satisfies(key, row, &query.conditions))
        .map(|(key, _)| key)
        .collect();
    let found: Vec<(Vec<u8>, Row)> = table.search(query).unwrap().map(Result::unwrap).collect();
    let limit = query.limit.map_or(usize::MAX, |limit| limit as usize);
    let expected = matching.len().saturating_sub(query.skip as usize).min(limit);
    assert_eq!(found.len(), expected, "{query:?} found {found:?} of {matching:?}");
    let mut seen = std::collections::BTreeSet::new();
    for (key, row) in &found {
        assert!(matching.contains(&key) && seen.insert(key), "{query:?} found {key:?}");
        assert_eq!(*row, Row::new(&rows[key]).unwrap());
    }
    assert_eq!(table.count(query).unwrap(), expected as u64);
    // Indexes alone may find the keys.
    let only = SearchOptions { keys_only: true, ..SearchOptions::default() };
    let found_keys = keys(table.search_with(query, only).unwrap());
    assert!(found_keys.iter().eq(found.iter().map(|(key, _)| key)), "{query:?} found {found_keys:?}");
    let Some((column, order)) = &query.order else { return };
    // Equal rows may come in any order.
    let of = |key: &Vec<u8>| text(key, &rows[key], column).map(<[u8]>::to_vec);
    let mut sorted: Vec<_> = matching.into_iter().map(of).collect();
    sorted.sort_by(|one, other| compare(one.as_deref(), other.as_deref(), *order));
    let window = sorted.into_iter().skip(query.skip as usize).take(limit);
    for (expected, (key, _)) in window.zip(&found) {
        let same = compare(expected.as_deref(), of(key).as_deref(), *order);
        assert_eq!(same, Ordering::Equal, "{query:?} found {found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn queries_find_what_a_plain_evaluation_finds(
        rows in rows(), indexes in indexes(), are_first: bool, queries in prop::collection::vec(query(), 1..8)
    ) {
        let table = table(&rows, &indexes, are_first);
        queries.iter().for_each(|query| check(&table, &rows, query));
    }

    #[test]
    fn set_operations_combine_the_results(
        rows in rows(), indexes in indexes(), queries in prop::collection::vec(query(), 1..4)
    ) {
        let table = table(&rows, &indexes, true);
        let of = |query: &Query| keys(table.search(query).unwrap());
        let all: Vec<_> = queries.iter().map(|query| of(&Query { limit: None, skip: 0, ..query.clone() })).collect();
        let (first, others) = all.split_first().unwrap();
        let window = |keys: Vec<Vec<u8>>| {
            let limit = queries[0].limit.map_or(usize::MAX, |limit| limit as usize);
            keys.into_iter().skip(queries[0].skip as usize).take(limit).collect::<Vec<_>>()
        };
        let difference = first.iter().filter(|key| !others.iter().any(|other| other.contains(key)));
        let last = all.last().unwrap();
        let intersection = last.iter().filter(|key| all.iter().all(|other| other.contains(key)));
        let set = |operation| keys(table.search_set(&queries, operation).unwrap());
        prop_assert_eq!(set(SetOperation::Difference), window(difference.cloned().collect()));
        if queries.len() > 1 {
            prop_assert_eq!(set(SetOperation::Intersection), window(intersection.cloned().collect()));
        }
        if queries.iter().all(|query| query.limit.is_none()) {
            let mut union = first.clone();
            others.iter().flatten().for_each(|key| if !union.contains(key) { union.push(key.clone()) });
            prop_assert_eq!(set(SetOperation::Union), window(union));
        }
    }
}

/// A table of 3,000 rows, so that plans compare indexes and read in several steps.
fn large_table() -> (Table, Rows) {
    let mut rows = Rows::new();
    for number in 0..3000usize {
        let mut row = vec![("name", TEXTS[number * 7 % 22]), ("text", TEXTS[number * 13 % 22])];
        if number % 10 > 0 {
            row.insert(0, ("age", ["1", "25", "30", "-4", "400"][number % 5]));
        }
        rows.insert(number.to_string().into_bytes(), row);
    }
    let indexes = [("age", IndexKind::Decimal), ("name", IndexKind::Lexical), ("text", IndexKind::QGram)];
    (table(&rows, &indexes, true), rows)
}

#[test]
fn plans_find_all_rows_of_a_large_table() {
    use ConditionOperator as Operator;
    let (table, rows) = large_table();
    let name = |order| ("name", order);
    for (conditions, order, limit, plan) in [
        (vec![], None, None, "scanning the whole table\nresult set size: 3000\nleaving the natural order\n"),
        (
            vec![("age", Operator::NumberBetween, "20 30")],
            Some(("age", QueryOrder::NumberDescending)),
            Some(10),
            "using an index: \"age\" asc (NUMBT)\nlimited matching: 12\nresult set size: 12\nleaving the index order\n",
        ),
        (
            vec![("age", Operator::NumberAtLeast, "30")],
            None,
            None,
            "using an index: \"age\" asc (NUMGT/NUMGE)\nresult set size: 1200\nleaving the natural order\n",
        ),
        (
            vec![("age", Operator::NumberBelow, "0"), ("name", Operator::TextEquals, "abc")],
            None,
            None,
            "using an index: \"name\" asc (STREQ)\nresult set size: 28\nleaving the natural order\n",
        ),
        (
            vec![],
            Some(name(QueryOrder::TextDescending)),
            Some(20),
            "using an index: \"name\" desc (order)\nlimited matching: 22\nresult set size: 22\nleaving the index order\n",
        ),
        (
            vec![("text", Operator::FullTextPhrase, "hello")],
            Some(name(QueryOrder::TextAscending)),
            None,
            "using an index: \"text\" inverted (FTS)\nresult set size: 272\nsorting the result set: \"name\"\n",
        ),
        (
            vec![("name", Operator::EqualsAnyWord, "abc ecole")],
            Some(name(QueryOrder::TextDescending)),
            None,
            "using an index: \"name\" skip (STROREQ)\nresult set size: 273\nleaving the index order\n",
        ),
        (
            vec![("", Operator::TextBegins, "29")],
            Some(("", QueryOrder::TextDescending)),
            Some(5),
            "using an index: \"\" asc (STRBW)\nlimited matching: 7\nresult set size: 7\nleaving the index order\n",
        ),
        (
            vec![("text", Operator::TextContains, "b")],
            None,
            Some(4),
            "scanning the whole table\nlimited matching: 6\nresult set size: 6\nleaving the natural order\n",
        ),
    ] {
        let mut query = Query::new().skip(limit.map_or(0, |_| 2));
        for (column, operator, expression) in conditions {
            query = query.filter(column.as_bytes(), operator, expression.as_bytes());
        }
        query.order = order.map(|(column, order)| (column.as_bytes().to_vec(), order));
        query.limit = limit;
        check(&table, &rows, &query);
        let mut search = table.search(&query).unwrap();
        search.count_rows().unwrap();
        assert_eq!(search.hint(), plan, "{query:?}");
    }
}

#[test]
fn rows_can_be_removed_while_they_are_found() {
    let (table, rows) = large_table();
    let old = Query::new().filter(b"age", ConditionOperator::NumberAtLeast, b"30");
    assert_eq!(table.remove_matching(&old).unwrap(), 1200);
    assert_eq!((table.count(&old).unwrap(), table.count(&Query::new()).unwrap()), (0, 1800));
    assert_eq!(table.remove_matching(&Query::new().skip(10)).unwrap(), 1790);
    assert_eq!(table.db().count(), rows.len() as u64 - 3000 + 10 + 1);
    table_indexes::assert_indexes_follow_from_rows(table.db().database().engine());
}

#[test]
fn unbounded_sort_is_refused_at_its_memory_limit() {
    let (table, _) = large_table();
    let options = SearchOptions { bytes_max: 10_000, ..SearchOptions::default() };
    let all = Query::new().order_by(b"text", QueryOrder::TextAscending);
    let mut search = table.search_with(&all, options).unwrap();
    assert_eq!(search.next().unwrap().map_err(|error| error.kind()), Err(ErrorKind::Full));
    assert!(search.next().is_none());
    assert_eq!(table.search_with(&all.limit(50), options).unwrap().count(), 50);
}

#[test]
fn expired_rows_are_not_found() {
    let table = table(&Rows::new(), &[("a", IndexKind::Lexical)], true);
    table.db().set_with(b"1", b"a\0x", Ttl::Expired, 0).unwrap();
    table.db().set_with(b"2", b"a\0x", Ttl::Seconds(1000), 0).unwrap();
    for query in [Query::new(), Query::new().filter(b"a", ConditionOperator::TextEquals, b"x")] {
        assert_eq!(keys(table.search(&query).unwrap()), [b"2"]);
        assert_eq!(table.count(&query).unwrap(), 1);
    }
}

#[test]
fn long_words_are_found_by_their_ends() {
    let [long, longer] = [255, 256].map(|len| "x".repeat(len));
    for (kind, operators) in [
        (IndexKind::Lexical, &[ConditionOperator::TextEquals, ConditionOperator::TextBegins][..]),
        (IndexKind::Token, &[ConditionOperator::HasAllWords, ConditionOperator::HasAnyWord]),
    ] {
        let table = table(&Rows::new(), &[("a", kind)], true);
        for (key, text) in [("1", &long), ("2", &longer), ("3", &format!("{longer}y"))] {
            table.put(key.as_bytes(), &[("a", text)]).unwrap();
        }
        for &operator in operators {
            for expression in [&long, &longer, &format!("{longer}y"), &format!("{longer}z")] {
                let condition = Condition::new(b"a", operator, expression.as_bytes());
                let all = Query::new().condition(condition.clone().without_index());
                let query = Query::new().condition(condition);
                assert_eq!(table.count(&query).unwrap(), table.count(&all).unwrap(), "{operator:?}");
            }
        }
    }
}

#[test]
fn numbers_for_new_rows_are_never_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.table");
    let mut last = 0;
    for _ in 0..3 {
        let table = Table::new(&Db::open(path.to_str().unwrap()).unwrap()).unwrap();
        for _ in 0..3 {
            let number = table.new_number().unwrap();
            assert!(number > last);
            last = number;
        }
    }
    assert_eq!(last, 2003);
}

#[test]
fn index_beyond_the_64th_is_refused() {
    let table = table(&Rows::new(), &[], true);
    let set = |number: usize, kind| table.set_index(format!("c{number}").as_bytes(), kind);
    (0..64).for_each(|number| set(number, Some(IndexKind::Lexical)).unwrap());
    let error = set(64, Some(IndexKind::Lexical)).unwrap_err();
    assert_eq!(error.to_string(), "index: the table already has 64 indexes; drop one");
    set(63, Some(IndexKind::Token)).unwrap();
    set(0, None).unwrap();
    set(64, Some(IndexKind::Lexical)).unwrap();
    assert_eq!(table.indexes().len(), 64);
}

/// A text of 16 MiB in a column with a full-text index took more than 1 GiB for its entries.
#[test]
fn row_with_too_many_terms_is_refused() {
    let indexes = [("text", IndexKind::QGram), ("words", IndexKind::Token), ("name", IndexKind::Lexical)];
    let table = table(&Rows::new(), &indexes, true);
    let long = "a".repeat((1 << 20) + 1);
    let words = "a ".repeat((1 << 20) + 1);
    for (column, text) in [("text", &long), ("words", &words)] {
        let error = table.put(b"1", &[(column, text)]).unwrap_err();
        assert_eq!(error.to_string(), "row: its indexed columns have more than 1048576 words or characters");
        assert!(table.add_columns(b"1", &[(column, text)]).is_err());
        assert_eq!(table.get(b"1").unwrap(), None);
    }
    table.put(b"1", &[("words", &long), ("name", &long), ("other", &words)]).unwrap();
    table.put(b"2", &[("text", &long[1..])]).unwrap();
    let query = Query::new().filter(b"text", ConditionOperator::FullTextPhrase, b"aaa");
    assert_eq!(table.count(&query).unwrap(), 1);
}

/// Only puts of rows were limited, not additions to a row, plain commands and transactions.
#[test]
fn limit_of_terms_holds_for_every_write() {
    let db = Db::open("mem:table").unwrap();
    let table = Table::new(&db).unwrap();
    table.set_index(b"words", Some(IndexKind::Token)).unwrap();
    let half = "a ".repeat(1 << 19);
    let row = Row::new(&[("words", half.repeat(3))]).unwrap();
    let kind = |outcome: todana::Result<()>| outcome.unwrap_err().kind();
    assert_eq!(kind(db.set(b"1", row.as_bytes())), ErrorKind::Invalid);
    assert_eq!(kind(db.begin().unwrap().set(b"1", row.as_bytes())), ErrorKind::Invalid);
    db.set(b"1", format!("words\0{half}").as_bytes()).unwrap();
    assert_eq!(kind(db.append(b"1", half.repeat(2).as_bytes()).map(|_| ())), ErrorKind::Invalid);
    assert_eq!(table.get(b"1").unwrap().unwrap().get(b"words").unwrap().len(), half.len());
    db.append(b"1", half.as_bytes()).unwrap();
}

#[test]
fn other_databases_are_not_tables() {
    let error = Table::new(&Db::open("mem:tree").unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let table = table(&Rows::new(), &[], true);
    assert_eq!(table.put(b"", &[("a", "b")]).unwrap_err().kind(), ErrorKind::Invalid);
}

/// An index holds the first 256 bytes of a text, so that longer ones came in the order of their
/// keys.
#[test]
fn index_order_includes_the_ends_of_texts() {
    let texts: Vec<String> = (0..2000u32)
        .map(|number| match number % 4 {
            0 => format!("{}{}", "x".repeat(256), number * 7919 % 2003),
            1 => "x".repeat(250),
            2 => format!("{}y{}", "x".repeat(255), number * 104_729 % 1009),
            _ => number.to_string(),
        })
        .collect();
    let table = table(&Rows::new(), &[("text", IndexKind::Lexical)], true);
    for (number, text) in texts.iter().enumerate() {
        table.put(number.to_string().as_bytes(), &[("text", text)]).unwrap();
    }
    let mut sorted = texts;
    sorted.sort();
    for (order, prefix, limit) in [
        (QueryOrder::TextAscending, "x", None),
        (QueryOrder::TextDescending, "x", None),
        (QueryOrder::TextAscending, "xx", Some(700)),
        (QueryOrder::TextDescending, "x", Some(30)),
        (QueryOrder::TextDescending, "", Some(100)),
    ] {
        let query = Query::new().filter(b"text", ConditionOperator::TextBegins, prefix.as_bytes());
        let query = Query { limit, skip: 3, ..query.order_by(b"text", order) };
        let mut search = table.search(&query).unwrap();
        let found: Vec<String> = search
            .by_ref()
            .map(|found| String::from_utf8(found.unwrap().1.get(b"text").unwrap().to_vec()).unwrap())
            .collect();
        let mut expected: Vec<&String> = sorted.iter().filter(|text| text.starts_with(prefix)).collect();
        if order.is_descending() {
            expected.reverse();
        }
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        assert!(found.iter().eq(expected.into_iter().skip(3).take(limit)), "{query:?}");
        assert!(search.hint().contains("leaving the index order"), "{}", search.hint());
    }
}

/// The number of the terms was checked by a visitor that waited for its own visit.
#[test]
fn long_definitions_are_stored() {
    let db = Db::open("mem:table").unwrap();
    let table = Table::new(&db).unwrap();
    let name = vec![b'n'; 2 << 20];
    table.set_index(&name, Some(IndexKind::Token)).unwrap();
    assert_eq!(table.indexes()[0].column, name);
    db.set(b"", &[&name[..], b"\0decimal"].concat()).unwrap();
}

/// Numbers were counted from 1 at each server. After a replica had become the master, its new rows
/// replaced those that its master had numbered.
#[test]
fn new_numbers_skip_existing_rows() {
    let db = Db::open("mem:table").unwrap();
    let table = Table::new(&db).unwrap();
    for number in (1..=500u32).chain(2_000..2_010) {
        table.put(number.to_string().as_bytes(), &[("a", "b")]).unwrap();
    }
    let numbers: Vec<u64> = (0..3).map(|_| table.new_number().unwrap()).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next) && numbers[0] > 500, "{numbers:?}");
    for _ in 0..3_000 {
        let number = table.new_number().unwrap().to_string();
        assert!(table.put_new(number.as_bytes(), &[("a", "c")]).unwrap(), "{number}");
    }
}

#[test]
fn name_creates_missing_indexes_and_keeps_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tct");
    let name = |kind: &str| format!("{}#idx=age:{kind}#idx=:lex", path.display());
    for kind in ["dec", "token"] {
        let table = Table::new(&Db::open(&name(kind)).unwrap()).unwrap();
        table.put(b"1", &[("age", "30")]).unwrap();
        let expected = [(b"".to_vec(), IndexKind::Lexical), (b"age".to_vec(), IndexKind::Decimal)];
        let mut indexes: Vec<_> =
            table.indexes().into_iter().map(|index| (index.column.to_vec(), index.kind)).collect();
        indexes.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(indexes, expected, "{kind}");
    }
}

/// A table without the index could not be opened for reading.
#[test]
fn reader_needs_none_of_the_named_indexes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.table").display().to_string();
    let table = Table::new(&Db::open(&path).unwrap()).unwrap();
    table.put(b"1", &[("age", "30")]).unwrap();
    drop(table);
    let table = Table::new(&Db::open(&format!("{path}#mode=r#idx=age:dec")).unwrap()).unwrap();
    assert_eq!(table.indexes(), []);
    let query = Query::new().condition(Condition::new(b"age", ConditionOperator::NumberEquals, b"30"));
    assert_eq!(table.count(&query).unwrap(), 1);
}

/// The 65th index of a name was ignored.
#[test]
fn name_with_too_many_indexes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.table").display().to_string();
    let name = |columns: std::ops::Range<u32>| {
        columns.fold(path.clone(), |name, column| format!("{name}#idx=c{column}:lex"))
    };
    drop(Db::open(&name(0..64)).unwrap());
    let error = Db::open(&name(1..65)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().ends_with(": idx=c64: the table already has 64 indexes; drop one"), "{error}");
    let db = Db::open(&name(0..64)).unwrap();
    assert_eq!(Table::new(&db).unwrap().indexes().len(), 64);
}
