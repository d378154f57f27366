"""Rows of tables as dicts, and queries for them."""

import threading

import pytest

import todana

OPERATORS = {
    "streq": "b",
    "strinc": "b",
    "strbw": "b",
    "strew": "b",
    "strand": "b a",
    "stror": "b c",
    "stroreq": "a b",
    "strrx": "^[ab]$",
    "numeq": 5,
    "numgt": 5,
    "numge": 5.5,
    "numlt": 6,
    "numle": 5,
    "numbt": "4 6",
    "numoreq": "5 7",
    "ftsph": "b",
    "ftsand": "a b",
    "ftsor": "b x",
    "ftsex": "b && a",
}


@pytest.fixture(params=["mem:table", "disk.table"])
def db(request, tmp_path):
    name = request.param
    with todana.open(name if name.startswith("mem:") else str(tmp_path / name), text=True) as db:
        yield db


@pytest.fixture
def table(db):
    return db.table()


@pytest.fixture
def people(table):
    table["ann"] = {"name": "Ann", "age": "33", "about": "Plays chess in Oslo"}
    table["bob"] = {"name": "Bob", "age": "25", "about": "Has a dog"}
    table["zed"] = {"name": "Zed", "age": "40", "about": "Teaches chess"}
    return table


def test_row_is_a_dict_of_its_columns(table):
    table["ann"] = {"name": "Ann", b"age": b"33"}
    assert table["ann"] == {"name": "Ann", "age": "33"} == table.get("ann")
    table.set("ann", [("town", "Oslo")])
    assert table["ann"] == {"town": "Oslo"}
    assert not table.add("ann", {"x": "y"}) and table.add("bob", {"x": "y"})
    table.add_columns("ann", {"town": "Rome", "age": "33"})
    table.add_columns("cid", {"age": "1"})
    assert table["ann"] == {"town": "Oslo", "age": "33"} and table["cid"] == {"age": "1"}
    assert table.pop("bob") == {"x": "y"} and table.pop("bob", None) is None
    assert "ann" in table and "bob" not in table and table.get("bob") is None
    assert len(table) == 2 and list(table) == ["ann", "cid"] and list(reversed(table)) == ["cid", "ann"]
    del table["ann"]
    for missing in (lambda: table["ann"], lambda: table.pop("ann"), lambda: table.__delitem__("ann")):
        with pytest.raises(KeyError):
            missing()


def test_rows_of_a_range_are_viewed(people):
    people.set_index("age", "decimal")
    assert len(people) == 3 and "" not in people and people.get("") is None
    assert list(people.keys("b")) == ["bob", "zed"]
    assert [row["age"] for row in people.values(reverse=True)] == ["40", "25", "33"]
    assert list(people.items(prefix="b")) == [("bob", people["bob"])]
    assert "bob" in people.keys() and people["bob"] in people.values() and ("bob", {}) not in people.items()
    assert len(people.items("b", "c")) == 1


def test_bytes_come_back_without_text():
    with todana.open("mem:table") as db:
        table = db.table()
        table["ann"] = {"age": "33"}
        assert table[b"ann"] == {b"age": b"33"} and db[b"ann"] == b"age\x0033"
        assert list(table.query().items()) == [(b"ann", {b"age": b"33"})]


def test_wrong_rows_and_databases_are_refused(table):
    for key, row in [("", {"a": "b"}), ("k", {"": "b"}), ("k", {"a": "\0"})]:
        with pytest.raises(todana.InvalidError):
            table[key] = row
    with pytest.raises(TypeError):
        table["k"] = {"a": 1}
    with todana.open("mem:hash") as db:
        for wrong in (db.table, db.fixed, lambda: db.get_values("k"), lambda: db.add_value("k", "v")):
            with pytest.raises(todana.InvalidError):
                wrong()


def test_query_is_built_in_steps(people):
    old = people.query().where("age", "numge", 30)
    query = old.where("about", "ftsph", "chess").order("age", "numdesc").limit(10)
    assert list(query.keys()) == ["zed", "ann"]
    assert [row["name"] for row in query.limit(1, skip=1).rows()] == ["Ann"]
    assert list(query.items())[0] == ("zed", people["zed"])
    assert query.count() == 2 == old.count() and people.query().count() == 3
    assert list(people.query().where("", "strbw", "b").keys()) == ["bob"]
    assert list(old.where("age", "numge", 40, negate=True).keys()) == ["ann"]
    assert list(people.query().order("name", "strdesc").keys()) == ["zed", "bob", "ann"]
    assert list(people.query().order("age").keys()) == ["bob", "ann", "zed"]
    assert list(people.query().order("age", "numasc").limit(skip=1).keys()) == ["ann", "zed"]
    for wrong in (lambda: old.where("age", "above", 3), lambda: old.order("age", "up")):
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("operator", OPERATORS)
def test_operator_of_tokyo_cabinet_is_known(table, operator):
    for number, text in enumerate(["b", "a", "b a", "5", "6 b", ""]):
        table[str(number)] = {"c": text}
    table["none"] = {"d": "b"}
    condition = ("c", operator, OPERATORS[operator])
    found = set(table.query().where(*condition).keys())
    rest = set(table.query().where(*condition, negate=True).keys())
    assert 0 < len(found) < 6 and found | rest == set(table) and not found & rest
    assert set(table.query().where("c", "~" + operator.upper(), OPERATORS[operator]).keys()) == rest
    assert "none" in rest


def test_index_is_in_the_plan(people):
    people.set_index("age", "decimal")
    people.set_index("about", "qgram")
    people.finish_indexes()
    assert people.indexes() == [("age", "decimal", True), ("about", "qgram", True)]
    query = people.query().where("age", "numge", 30)
    assert 'using an index: "age" asc (NUMGT/NUMGE)' in query.hint() and "result set size: 2" in query.hint()
    scanned = people.query().where("age", "numge", 30, index=False)
    assert "using an index" not in scanned.hint() and scanned.count() == 2
    people.set_index("about", None)
    assert people.indexes() == [("age", "decimal", True)]
    with pytest.raises(ValueError):
        people.set_index("age", "btree")


def test_queries_are_combined_as_sets(people):
    old, chess = people.query().where("age", "numge", 40), people.query().where("about", "strinc", "chess")
    assert set(old.union(chess).keys()) == {"ann", "zed"} and old.union(chess).count() == 2
    assert list(chess.intersection(old).rows()) == [people["zed"]]
    assert list(chess.difference(old).keys()) == ["ann"]
    assert "[1] " in old.union(chess).hint()
    assert chess.difference(old).delete() == 1 and "ann" not in people
    with todana.open("mem:table", text=True) as other:
        with pytest.raises(todana.InvalidError):
            old.union(other.table().query())
    with pytest.raises(TypeError):
        old.union("chess")


def test_found_rows_are_removed(people):
    assert people.query().where("age", "numlt", 35).delete() == 2
    assert list(people) == ["zed"] and people.query().delete() == 1 and len(people) == 0


def test_snippets_show_words_in_their_text(people):
    query = people.query().where("about", "ftsph", "chess")
    assert query.snippets("about", "Plays chess in Oslo", width=3) == ["ys [chess] in"]
    assert query.snippets("about", "Plays Chess", before="<b>", after="</b>") == ["Plays <b>Chess</b>"]
    assert query.snippets("about", "none", lead=True) == ["none"] and query.snippets("about", "none") == []


def test_new_numbers_differ(table):
    numbers = [table.new_number() for _ in range(100)]
    assert len(set(numbers)) == 100


def test_iterator_streams_rows_during_changes(table):
    for number in range(5000):
        table[f"{number:04}"] = {"n": str(number), "text": "x" * 100}
    found = table.query().where("n", "numlt", 4000).items()
    assert next(found) == ("0000", {"n": "0", "text": "x" * 100})
    table.query().where("n", "numge", 3000).delete()
    rest = [key for key, _ in found]
    assert rest == [f"{number:04}" for number in range(1, 3000)]


def test_transaction_and_snapshot_have_rows(db, people):
    with db.snapshot() as then, db.transaction() as t:
        rows = t.table()
        rows["dan"] = {"age": "1"}
        rows.add_columns("ann", {"town": "Oslo"})
        assert "dan" not in people and rows["ann"]["town"] == "Oslo" and len(rows) == 4
        assert people.query().where("town", "streq", "Oslo").count() == 0
        for wrong in (rows.query, rows.new_number, then.table().query, rows.indexes):
            with pytest.raises(todana.InvalidError):
                wrong()
        t.commit()
        assert "dan" not in then.table() and list(then.table()) == ["ann", "bob", "zed"]
    assert people.query().where("town", "streq", "Oslo").count() == 1


def test_rows_and_indexes_survive_the_process(tmp_path):
    name = str(tmp_path / "people.table")
    with todana.open(name) as db:
        db.table().set_index("age", "decimal")
        db.table()["ann"] = {"age": "33"}
    with todana.open(name, text=True) as db:
        assert db.table().indexes() == [("age", "decimal", True)] and db.table()["ann"] == {"age": "33"}


def test_closed_database_ends_queries(tmp_path):
    db = todana.open(str(tmp_path / "x.table"), text=True)
    table = db.table()
    for number in range(100):
        table[str(number)] = {"a": "b"}
    query, found = table.query(), table.query().keys()
    next(found)
    db.close()
    with pytest.raises(todana.ClosedError):
        list(found)
    for wrong in (query.count, query.keys, query.hint, lambda: table["1"]):
        with pytest.raises(todana.ClosedError):
            wrong()
    # The open iterator does not keep the files locked.
    with todana.open(str(tmp_path / "x.table")) as again:
        assert again.table().query().count() == 100


def test_threads_share_a_search(table):
    for number in range(3000):
        table[str(number)] = {"a": "b"}
    found, all_keys = table.query().keys(), []

    def read():
        all_keys.extend(found)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(all_keys) == sorted(str(number) for number in range(3000))
