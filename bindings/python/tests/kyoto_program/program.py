"""A program for Kyoto Cabinet's module, which uses no name of Todana.

expected.txt has its output with the original module.
"""

import os
import sys
import threading

import kyotocabinet as kc

INF = float("inf")
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


def show(what, *values):
    print(what, *(repr(value) for value in values))


def show_result(db, what, value):
    """Shows a value and, if the call failed, its error."""
    error = db.error()
    failed = value is False or value is None or value == -1
    show(what, value, *((error.code(), error.name(), error.message()) if failed else ()))


def module():
    show("constants", kc.DB.OREADER, kc.DB.OWRITER, kc.DB.OCREATE, kc.DB.OTRUNCATE, kc.DB.OAUTOTRAN)
    show("constants", kc.DB.OAUTOSYNC, kc.DB.ONOLOCK, kc.DB.OTRYLOCK, kc.DB.ONOREPAIR)
    show("constants", kc.DB.MSET, kc.DB.MADD, kc.DB.MREPLACE, kc.DB.MAPPEND, kc.DB.GEXCEPTIONAL, kc.DB.GCONCURRENT)
    names = "SUCCESS NOIMPL INVALID NOREPOS NOPERM BROKEN DUPREC NOREC LOGIC SYSTEM MISC".split()
    for name in names:
        error = kc.Error(getattr(kc.Error, name), "why")
        kind = getattr(kc.Error, "X" + name)
        show(name, error.code(), error.name(), str(error), repr(error), kind.__name__, issubclass(kind, kc.Error))
    show("errors", kc.Error(7, "x") == kc.Error(7, "y"), kc.Error(7, "x") == 7, kc.Error(7, "x") != 7, kc.Error(7, "x") < 8)
    show("errors", str(kc.Error()), str(kc.Error("6: again")), kc.Error("6: again").code(), issubclass(kc.Error, RuntimeError))
    error = kc.Error(1, "a")
    error.set(2, "b")
    show("set", error.code(), error.message())
    show("bytes", kc.conv_bytes("ä"), kc.conv_bytes(17), kc.conv_bytes(None), kc.conv_bytes(bytearray(b"x")), kc.conv_bytes(1.5))
    show("atoi", [kc.atoi(text) for text in ("12", " -7x", "abc", "+5", "1.9", "")])
    show("atoix", [kc.atoix(text) for text in ("12", "2k", "1.5K", "3m", "-1g", "x", "2Ki", "1t")])
    show("atof", [kc.atof(text) for text in ("12", "-1.25", "1e3", "x", "inf", "-inf", "0x10", ".5")])
    show("murmur", [kc.hash_murmur(text) for text in ("", "a", "abcdefgh", "0123456789")])
    show("fnv", [kc.hash_fnv(text) for text in ("", "a", "abcdefgh")])
    show("levdist", kc.levdist("kitten", "sitting"), kc.levdist("ä", "a"), kc.levdist("ä", "a", True), kc.levdist("", "abc"))
    show("visitor", kc.Visitor.NOP, kc.Visitor.REMOVE, kc.Visitor().visit_full(b"k", b"v"), kc.Visitor().visit_empty(b"k"))
    show("processor", kc.FileProcessor().process("p", 1, 2))


def records(db):
    show_result(db, "set", db.set("a", "1"))
    show_result(db, "get", db.get("a"))
    show_result(db, "get_str", db.get_str("a"))
    show_result(db, "get none", db.get("none"))
    show_result(db, "add", db.add("a", "2"))
    show_result(db, "add new", db.add("b", "2"))
    show_result(db, "replace", db.replace("a", "3"))
    show_result(db, "replace none", db.replace("none", "3"))
    show_result(db, "append", db.append("a", "4"))
    show_result(db, "append none", db.append("c", "5"))
    show_result(db, "remove", db.remove("c"))
    show_result(db, "remove none", db.remove("c"))
    show_result(db, "check", db.check("a"))
    show_result(db, "check none", db.check("c"))
    show_result(db, "seize", db.seize("b"))
    show_result(db, "seize none", db.seize("b"))
    show_result(db, "cas", db.cas("a", "34", "x"))
    show_result(db, "cas other", db.cas("a", "34", "y"))
    show_result(db, "cas new", db.cas("n", None, "y"))
    show_result(db, "cas there", db.cas("n", None, "z"))
    show_result(db, "cas remove", db.cas("n", "y", None))
    show_result(db, "types", db.set(7, 8.5) and db.set(None, b"\0\xff") and db.set(b"by", bytearray(b"te")))
    show("types", db.get(7), db.get(""), db.get("by"), db.get(b"7"))
    show("dict", len(db), db["a"], db["none"])
    db["d"] = "e"
    del db["d"]
    for act in (lambda: db.__delitem__("d"),):
        try:
            act()
        except RuntimeError as error:
            show("del", type(error).__name__, str(error))
    show_result(db, "count", db.count())
    show_result(db, "clear", db.clear())
    show_result(db, "count", db.count())


def numbers(db):
    show_result(db, "increment", db.increment("n", 5))
    show_result(db, "increment", db.increment("n", -7, 100))
    show("stored", db.get("n"))
    show_result(db, "set", db.increment("n", 4, INT64_MAX))
    show_result(db, "try", db.increment("n", 4, INT64_MIN))
    show_result(db, "try none", db.increment("none", 4, INT64_MIN))
    show_result(db, "read", db.increment("n"))
    show_result(db, "floats", db.increment("n", 2.9))
    show_result(db, "text", db.increment("n", "3"))
    show_result(db, "inf", db.increment("n", 6, INF))
    db.set("x", "abc")
    show_result(db, "no number", db.increment("x", 1))
    show_result(db, "no number", db.increment("x", 1, INT64_MAX))
    show_result(db, "double", db.increment_double("d", 1.5))
    show_result(db, "double", db.increment_double("d", -3.25))
    show("stored", db.get("d"))
    show_result(db, "double set", db.increment_double("d", 0.5, INF))
    show_result(db, "double try", db.increment_double("none", 0.5, -INF))
    show_result(db, "double read", db.increment_double("d"))
    show_result(db, "no double", db.increment_double("x", 1))
    show_result(db, "clear", db.clear())


class Recorder(kc.Visitor):
    def __init__(self, full=kc.Visitor.NOP, empty=kc.Visitor.NOP):
        self.full, self.empty, self.seen = full, empty, []

    def visit_full(self, key, value):
        self.seen.append((key, value))
        return self.full

    def visit_empty(self, key):
        self.seen.append(key)
        return self.empty


def visitors(db):
    db.set_bulk({"a": "1", "b": "2", "c": "3"})
    for visitor in (Recorder(), Recorder("x", "y"), Recorder(kc.Visitor.REMOVE, kc.Visitor.REMOVE), Recorder(None, 5)):
        show_result(db, "accept", db.accept("a", visitor))
        show_result(db, "accept empty", db.accept("e", visitor))
        show("seen", visitor.seen, db.get("a"), db.get("e"))
    show_result(db, "callable", db.accept("b", lambda key, value: (key + b":" + value) if value else "new"))
    show_result(db, "callable", db.accept("q", lambda key, value: (key + b":" + value) if value else "new"))
    show("values", db.get("b"), db.get("q"))

    def fails(key, value):
        raise KeyError("no")

    for act in (lambda: db.accept("b", fails), lambda: db.iterate(fails), lambda: db.accept_bulk(["b"], fails)):
        try:
            act()
        except KeyError as error:
            show("raised", error.args)
    try:
        db.accept("b", lambda key, value: "x", False)
    except RuntimeError as error:
        show("read only", type(error).__name__, str(error))
    try:
        db.accept("b", 7)
    except TypeError as error:
        show("type", str(error))
    recorder = Recorder()
    show_result(db, "reads", db.accept("b", recorder, False))
    show("b", db.get("b"), recorder.seen)
    bulk = Recorder("bulk", kc.Visitor.NOP)
    show_result(db, "accept_bulk", db.accept_bulk(["b", "none", "c", "b"], bulk))
    show("seen", bulk.seen, db.get("b"), db.get("c"))
    every = Recorder()
    show_result(db, "iterate", db.iterate(every, False))
    show("seen", sorted(every.seen))

    def change(key, value):
        return {b"b": kc.Visitor.REMOVE, b"c": "changed"}.get(key, kc.Visitor.NOP)

    show_result(db, "iterate", db.iterate(change))
    show("all", sorted((key, db.get(key)) for key in db))
    show_result(db, "clear", db.clear())


def bulk(db):
    show_result(db, "set_bulk", db.set_bulk({"a": "1", b"b": 2, "c": "3"}))
    show_result(db, "set_bulk", db.set_bulk({"d": "4"}, False))
    show_result(db, "get_bulk", sorted(db.get_bulk(["a", "b", "none"]).items()))
    show_result(db, "get_bulk_str", sorted(db.get_bulk_str(["c", "d"], False).items()))
    show_result(db, "remove_bulk", db.remove_bulk(["a", "none", "b"]))
    show_result(db, "count", db.count())
    show_result(db, "clear", db.clear())


def matches(db):
    db.set_bulk({"user:1": "", "user:22": "", "vat": "", "usher": ""})
    show("prefix", sorted(db.match_prefix("user")), len(db.match_prefix("u", 2)), db.match_prefix("zz"))
    show("regex", sorted(db.match_regex("^user:[[:digit:]]+$")), len(db.match_regex("u", 1)), db.match_regex("zz"))
    show_result(db, "bad regex", db.match_regex("("))
    show("similar", db.match_similar("vet", 1), sorted(db.match_similar("user:2", 1, True)), db.match_similar("usher", 0, False, 1))
    show_result(db, "clear", db.clear())


def cursors(db):
    cursor = db.cursor()
    show_result(db, "jump", cursor.jump())
    show_result(db, "get", cursor.get())
    for letter in "abcde":
        db.set(letter, letter.upper())
    show_result(db, "get nowhere", cursor.get())
    show_result(db, "jump", cursor.jump())
    show_result(db, "get", cursor.get(True))
    show_result(db, "get_key", cursor.get_key())
    show_result(db, "get_value", cursor.get_value(True))
    show_result(db, "get_str", cursor.get_str())
    show_result(db, "get_key_str", cursor.get_key_str())
    show_result(db, "get_value_str", cursor.get_value_str())
    show_result(db, "step", cursor.step())
    show_result(db, "step_back", cursor.step_back())
    show_result(db, "get", cursor.get())
    show_result(db, "jump c", cursor.jump("c"))
    show_result(db, "jump bb", cursor.jump("bb"))
    show_result(db, "get", cursor.get())
    show_result(db, "jump z", cursor.jump("z"))
    show_result(db, "jump_back", cursor.jump_back())
    show("back", cursor.get_key(True), cursor.get_key(True), cursor.get_key())
    show_result(db, "jump_back cc", cursor.jump_back("cc"))
    show_result(db, "get", cursor.get())
    show_result(db, "remove", cursor.remove())
    show_result(db, "after", cursor.get())
    show_result(db, "set_value", cursor.set_value("new"))
    show_result(db, "set_value", cursor.set_value("newer", True))
    show("now", sorted((key, db.get(key)) for key in db))
    show_result(db, "jump", cursor.jump())
    show_result(db, "seize", cursor.seize())
    show_result(db, "seize_str", cursor.seize_str())
    show_result(db, "get", cursor.get())
    show_result(db, "accept", cursor.accept(lambda key, value: value * 2))
    show_result(db, "accept", cursor.accept(lambda key, value: value + b"!", True, True))
    show_result(db, "get", cursor.get())
    show_result(db, "accept", cursor.accept(lambda key, value: kc.Visitor.REMOVE))
    show_result(db, "end", cursor.get())
    show_result(db, "step", cursor.step())
    show("left", sorted((key, db.get(key)) for key in db))
    show_result(db, "shift", db.shift())
    show_result(db, "shift none", db.shift())
    db.set("k", "v")
    show_result(db, "shift_str", db.shift_str())
    db.set("a", "1")
    show("for", [key for key in db])
    show("process", db.cursor_process(lambda cursor: show("inner", cursor.jump(), cursor.get())))
    cursor = db.cursor()
    cursor.jump()
    show("db", cursor.db() is db, str(cursor.error()))
    show("disabled", cursor.disable(), cursor.get(), cursor.jump(), cursor.error(), str(cursor))
    db.clear()


def gone_records(db):
    for letter in "abcd":
        db.set(letter, letter.upper())
    cursor, back = db.cursor(), db.cursor()
    cursor.jump("b")
    back.jump_back("c")
    db.remove("b")
    db.remove("c")
    show("gone", cursor.get_key(), back.get_key())
    keys = []
    cursor.jump_back()
    while True:
        key = cursor.get_key(True)
        if key is None:
            break
        keys.append(key)
    show("backwards", keys)
    db.clear()


def transactions(db):
    show_result(db, "begin", db.begin_transaction())
    db.set_bulk({"a": "1", "b": "2"})
    show_result(db, "end", db.end_transaction(False))
    show_result(db, "count", db.count())
    db.set("a", "0")
    show_result(db, "begin", db.begin_transaction())
    db.set("a", "1")
    db.increment("n", 3)
    cursor = db.cursor()
    cursor.jump("a")
    show("within", db.get("a"), db.count(), cursor.get(), len(db.match_prefix("")))
    show_result(db, "end", db.end_transaction())
    show("after", db.get("a"), db.get("n"), cursor.get())
    show_result(db, "transaction", db.transaction(lambda: db.set("t", "1")))
    show_result(db, "transaction", db.transaction(lambda: db.set("u", "1") and False))
    show("after", db.get("t"), db.get("u"))
    show_result(db, "end without", db.end_transaction())
    db.clear()


def threads(db):
    def work(number):
        for step in range(50):
            db.increment("total", 1)
            db.set(f"{number}:{step}", "x")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    show("threads", db.increment("total", 0), db.count())
    # Each thread has its own last error.
    db.get("none")
    errors = []
    worker = threading.Thread(target=lambda: errors.append(db.error().code()))
    worker.start()
    worker.join()
    show("errors", db.error().code(), errors)
    db.clear()


def files(kind):
    place = "casket." + kind
    db = kc.DB()
    show_result(db, "not opened", db.set("a", "1"))
    show_result(db, "not opened", db.get("a"))
    show_result(db, "not opened", db.count())
    show_result(db, "not opened", db.close())
    show_result(db, "missing", db.open(place, kc.DB.OREADER))
    show_result(db, "missing", db.open(place, kc.DB.OWRITER))
    show_result(db, "no folder", db.open("none/" + place))
    show_result(db, "open", db.open(place, kc.DB.OWRITER | kc.DB.OCREATE))
    show_result(db, "again", db.open(place))
    show_result(db, "path", db.path())
    db.set("a", "1")
    show_result(db, "sync", db.synchronize())
    show_result(db, "sync hard", db.synchronize(True, lambda path, count, size: (show("at", path, count), True)[1]))
    show_result(db, "sync refused", db.synchronize(False, lambda path, count, size: False))
    show_result(db, "occupy", db.occupy(False, lambda path, count, size: (show("at", path, count), True)[1]))
    show_result(db, "occupy refused", db.occupy(True, lambda path, count, size: False))
    status = db.status()
    show("status", status["path"], status["count"], "type" in status, "size" in status)
    show_result(db, "copy", db.copy("copy." + kind))
    show_result(db, "close", db.close())
    show_result(db, "reader", db.open(place, kc.DB.OREADER))
    show_result(db, "get", db.get("a"))
    show_result(db, "set", db.set("a", "2"))
    show_result(db, "remove", db.remove("a"))
    show_result(db, "clear", db.clear())
    show_result(db, "increment", db.increment("n", 1))
    show_result(db, "begin", db.begin_transaction())
    show_result(db, "cas", db.cas("a", "1", "2"))
    show_result(db, "close", db.close())
    show_result(db, "copy", db.open("copy." + kind))
    show("copied", db.get("a"))
    db.close()
    show_result(db, "truncate", db.open(place, kc.DB.OWRITER | kc.DB.OCREATE | kc.DB.OTRUNCATE))
    show_result(db, "count", db.count())
    db.close()


def snapshots(name):
    db = kc.DB()
    db.open(name)
    db.set_bulk({"a": "1", "b": "2"})
    show_result(db, "dump", db.dump_snapshot("s.kcss"))
    with open("s.kcss", "rb") as file:
        data = file.read()
    show("file", len(data), data[:6])
    db.clear()
    show_result(db, "load", db.load_snapshot("s.kcss"))
    show("loaded", db.get("a"), db.count())
    show_result(db, "load none", db.load_snapshot("none.kcss"))
    with open("bad.kcss", "wb") as file:
        file.write(b"no dump at all")
    show_result(db, "load bad", db.load_snapshot("bad.kcss"))
    show_result(db, "dump nowhere", db.dump_snapshot("none/s.kcss"))
    db.close()


def merges():
    db, one, other = kc.DB(), kc.DB(), kc.DB()
    db.open("%")
    one.open(":")
    other.open("%")
    one.set_bulk({"a": "1", "b": "2"})
    other.set_bulk({"a": "x", "c": "3"})
    for mode in (kc.DB.MSET, kc.DB.MADD, kc.DB.MREPLACE, kc.DB.MAPPEND):
        db.clear()
        db.set("a", "0")
        show_result(db, "merge", db.merge([one, other], mode))
        show("merged", [(key, db.get(key)) for key in db])
    show_result(db, "merge none", db.merge([]))


def exceptions():
    db = kc.DB(kc.DB.GEXCEPTIONAL)
    try:
        db.set("a", "1")
    except kc.Error.XINVALID as error:
        show("raised", error.code(), error.message(), str(error), type(error).__name__)
    db.open("%")
    show("quiet", db.get("none"), db.remove("none"))
    show("rule", db.tune_exception_rule([kc.Error.NOREC, kc.Error.DUPREC]))
    for act in (lambda: db.get("none"), lambda: db.check("none"), lambda: db.set("a", "1") and db.add("a", "1")):
        try:
            act()
        except kc.Error as error:
            show("raised", type(error).__name__, str(error))
    show("rule", db.tune_exception_rule([]), db.get("none"))


def processes():
    show("process", kc.DB.process(lambda db: show("inner", db.set("a", "1"), db.get("a")), "%"))
    error = kc.DB.process(lambda db: None, "none/x.kch")
    show("failed", error.code(), type(error).__name__)


def closed():
    db = kc.DB()
    show("closed", str(db), repr(db), db.path(), db.status(), db.size())
    db.open("%")
    cursor = db.cursor()
    db.set("a", "1")
    cursor.jump()
    show("open", str(cursor), repr(cursor), db.path())
    show("close", db.close())
    show_result(db, "cursor", cursor.get())
    show_result(db, "close", db.close())
    show_result(db, "open", db.open())
    show("default", db.path())
    db.close()


module()
for name in ("%", ":", "casket.kct", "casket.kch", "*", "+", "-"):
    print("==", name)
    db = kc.DB()
    db.open(name, kc.DB.OWRITER | kc.DB.OCREATE | kc.DB.OTRUNCATE)
    for part in (records, numbers, visitors, bulk, matches, transactions, threads):
        if part is transactions and name == "*":
            continue
        print("--", part.__name__)
        part(db)
    if name in ("%", "casket.kct"):
        for part in (cursors, gone_records):
            print("--", part.__name__)
            part(db)
    db.close()
for kind in ("kch", "kct"):
    print("== files", kind)
    os.mkdir(kind)
    os.chdir(kind)
    files(kind)
    os.chdir("..")
for name in ("%", ":"):
    print("== snapshots", name)
    snapshots(name)
for part in (merges, exceptions, processes, closed):
    print("==", part.__name__)
    part()
sys.stdout.flush()
