"""A program for Kyoto Cabinet's module, which names nothing of Todana.

Its output on the original is in expected.txt.
"""

import os
import sys
import threading

import kyotocabinet as kc

INF = float("inf")
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


def show(what, *values):
    print(what, *(repr(value) for value in values))


def told(db, what, value):
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
    told(db, "set", db.set("a", "1"))
    told(db, "get", db.get("a"))
    told(db, "get_str", db.get_str("a"))
    told(db, "get none", db.get("none"))
    told(db, "add", db.add("a", "2"))
    told(db, "add new", db.add("b", "2"))
    told(db, "replace", db.replace("a", "3"))
    told(db, "replace none", db.replace("none", "3"))
    told(db, "append", db.append("a", "4"))
    told(db, "append none", db.append("c", "5"))
    told(db, "remove", db.remove("c"))
    told(db, "remove none", db.remove("c"))
    told(db, "check", db.check("a"))
    told(db, "check none", db.check("c"))
    told(db, "seize", db.seize("b"))
    told(db, "seize none", db.seize("b"))
    told(db, "cas", db.cas("a", "34", "x"))
    told(db, "cas other", db.cas("a", "34", "y"))
    told(db, "cas new", db.cas("n", None, "y"))
    told(db, "cas there", db.cas("n", None, "z"))
    told(db, "cas remove", db.cas("n", "y", None))
    told(db, "types", db.set(7, 8.5) and db.set(None, b"\0\xff") and db.set(b"by", bytearray(b"te")))
    show("types", db.get(7), db.get(""), db.get("by"), db.get(b"7"))
    show("dict", len(db), db["a"], db["none"])
    db["d"] = "e"
    del db["d"]
    for act in (lambda: db.__delitem__("d"),):
        try:
            act()
        except RuntimeError as error:
            show("del", type(error).__name__, str(error))
    told(db, "count", db.count())
    told(db, "clear", db.clear())
    told(db, "count", db.count())


def numbers(db):
    told(db, "increment", db.increment("n", 5))
    told(db, "increment", db.increment("n", -7, 100))
    show("stored", db.get("n"))
    told(db, "set", db.increment("n", 4, INT64_MAX))
    told(db, "try", db.increment("n", 4, INT64_MIN))
    told(db, "try none", db.increment("none", 4, INT64_MIN))
    told(db, "read", db.increment("n"))
    told(db, "floats", db.increment("n", 2.9))
    told(db, "text", db.increment("n", "3"))
    told(db, "inf", db.increment("n", 6, INF))
    db.set("x", "abc")
    told(db, "no number", db.increment("x", 1))
    told(db, "no number", db.increment("x", 1, INT64_MAX))
    told(db, "double", db.increment_double("d", 1.5))
    told(db, "double", db.increment_double("d", -3.25))
    show("stored", db.get("d"))
    told(db, "double set", db.increment_double("d", 0.5, INF))
    told(db, "double try", db.increment_double("none", 0.5, -INF))
    told(db, "double read", db.increment_double("d"))
    told(db, "no double", db.increment_double("x", 1))
    told(db, "clear", db.clear())


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
        told(db, "accept", db.accept("a", visitor))
        told(db, "accept empty", db.accept("e", visitor))
        show("seen", visitor.seen, db.get("a"), db.get("e"))
    told(db, "callable", db.accept("b", lambda key, value: (key + b":" + value) if value else "new"))
    told(db, "callable", db.accept("q", lambda key, value: (key + b":" + value) if value else "new"))
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
    told(db, "reads", db.accept("b", recorder, False))
    show("b", db.get("b"), recorder.seen)
    bulk = Recorder("bulk", kc.Visitor.NOP)
    told(db, "accept_bulk", db.accept_bulk(["b", "none", "c", "b"], bulk))
    show("seen", bulk.seen, db.get("b"), db.get("c"))
    every = Recorder()
    told(db, "iterate", db.iterate(every, False))
    show("seen", sorted(every.seen))

    def change(key, value):
        return {b"b": kc.Visitor.REMOVE, b"c": "changed"}.get(key, kc.Visitor.NOP)

    told(db, "iterate", db.iterate(change))
    show("all", sorted((key, db.get(key)) for key in db))
    told(db, "clear", db.clear())


def bulk(db):
    told(db, "set_bulk", db.set_bulk({"a": "1", b"b": 2, "c": "3"}))
    told(db, "set_bulk", db.set_bulk({"d": "4"}, False))
    told(db, "get_bulk", sorted(db.get_bulk(["a", "b", "none"]).items()))
    told(db, "get_bulk_str", sorted(db.get_bulk_str(["c", "d"], False).items()))
    told(db, "remove_bulk", db.remove_bulk(["a", "none", "b"]))
    told(db, "count", db.count())
    told(db, "clear", db.clear())


def matches(db):
    db.set_bulk({"user:1": "", "user:22": "", "vat": "", "usher": ""})
    show("prefix", sorted(db.match_prefix("user")), len(db.match_prefix("u", 2)), db.match_prefix("zz"))
    show("regex", sorted(db.match_regex("^user:[[:digit:]]+$")), len(db.match_regex("u", 1)), db.match_regex("zz"))
    told(db, "bad regex", db.match_regex("("))
    show("similar", db.match_similar("vet", 1), sorted(db.match_similar("user:2", 1, True)), db.match_similar("usher", 0, False, 1))
    told(db, "clear", db.clear())


def cursors(db):
    cursor = db.cursor()
    told(db, "jump", cursor.jump())
    told(db, "get", cursor.get())
    for letter in "abcde":
        db.set(letter, letter.upper())
    told(db, "get nowhere", cursor.get())
    told(db, "jump", cursor.jump())
    told(db, "get", cursor.get(True))
    told(db, "get_key", cursor.get_key())
    told(db, "get_value", cursor.get_value(True))
    told(db, "get_str", cursor.get_str())
    told(db, "get_key_str", cursor.get_key_str())
    told(db, "get_value_str", cursor.get_value_str())
    told(db, "step", cursor.step())
    told(db, "step_back", cursor.step_back())
    told(db, "get", cursor.get())
    told(db, "jump c", cursor.jump("c"))
    told(db, "jump bb", cursor.jump("bb"))
    told(db, "get", cursor.get())
    told(db, "jump z", cursor.jump("z"))
    told(db, "jump_back", cursor.jump_back())
    show("back", cursor.get_key(True), cursor.get_key(True), cursor.get_key())
    told(db, "jump_back cc", cursor.jump_back("cc"))
    told(db, "get", cursor.get())
    told(db, "remove", cursor.remove())
    told(db, "after", cursor.get())
    told(db, "set_value", cursor.set_value("new"))
    told(db, "set_value", cursor.set_value("newer", True))
    show("now", sorted((key, db.get(key)) for key in db))
    told(db, "jump", cursor.jump())
    told(db, "seize", cursor.seize())
    told(db, "seize_str", cursor.seize_str())
    told(db, "get", cursor.get())
    told(db, "accept", cursor.accept(lambda key, value: value * 2))
    told(db, "accept", cursor.accept(lambda key, value: value + b"!", True, True))
    told(db, "get", cursor.get())
    told(db, "accept", cursor.accept(lambda key, value: kc.Visitor.REMOVE))
    told(db, "end", cursor.get())
    told(db, "step", cursor.step())
    show("left", sorted((key, db.get(key)) for key in db))
    told(db, "shift", db.shift())
    told(db, "shift none", db.shift())
    db.set("k", "v")
    told(db, "shift_str", db.shift_str())
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
    told(db, "begin", db.begin_transaction())
    db.set_bulk({"a": "1", "b": "2"})
    told(db, "end", db.end_transaction(False))
    told(db, "count", db.count())
    db.set("a", "0")
    told(db, "begin", db.begin_transaction())
    db.set("a", "1")
    db.increment("n", 3)
    cursor = db.cursor()
    cursor.jump("a")
    show("within", db.get("a"), db.count(), cursor.get(), len(db.match_prefix("")))
    told(db, "end", db.end_transaction())
    show("after", db.get("a"), db.get("n"), cursor.get())
    told(db, "transaction", db.transaction(lambda: db.set("t", "1")))
    told(db, "transaction", db.transaction(lambda: db.set("u", "1") and False))
    show("after", db.get("t"), db.get("u"))
    told(db, "end without", db.end_transaction())
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
    told(db, "not opened", db.set("a", "1"))
    told(db, "not opened", db.get("a"))
    told(db, "not opened", db.count())
    told(db, "not opened", db.close())
    told(db, "missing", db.open(place, kc.DB.OREADER))
    told(db, "missing", db.open(place, kc.DB.OWRITER))
    told(db, "no folder", db.open("none/" + place))
    told(db, "open", db.open(place, kc.DB.OWRITER | kc.DB.OCREATE))
    told(db, "again", db.open(place))
    told(db, "path", db.path())
    db.set("a", "1")
    told(db, "sync", db.synchronize())
    told(db, "sync hard", db.synchronize(True, lambda path, count, size: (show("at", path, count), True)[1]))
    told(db, "sync refused", db.synchronize(False, lambda path, count, size: False))
    told(db, "occupy", db.occupy(False, lambda path, count, size: (show("at", path, count), True)[1]))
    told(db, "occupy refused", db.occupy(True, lambda path, count, size: False))
    status = db.status()
    show("status", status["path"], status["count"], "type" in status, "size" in status)
    told(db, "copy", db.copy("copy." + kind))
    told(db, "close", db.close())
    told(db, "reader", db.open(place, kc.DB.OREADER))
    told(db, "get", db.get("a"))
    told(db, "set", db.set("a", "2"))
    told(db, "remove", db.remove("a"))
    told(db, "clear", db.clear())
    told(db, "increment", db.increment("n", 1))
    told(db, "begin", db.begin_transaction())
    told(db, "cas", db.cas("a", "1", "2"))
    told(db, "close", db.close())
    told(db, "copy", db.open("copy." + kind))
    show("copied", db.get("a"))
    db.close()
    told(db, "truncate", db.open(place, kc.DB.OWRITER | kc.DB.OCREATE | kc.DB.OTRUNCATE))
    told(db, "count", db.count())
    db.close()


def snapshots(name):
    db = kc.DB()
    db.open(name)
    db.set_bulk({"a": "1", "b": "2"})
    told(db, "dump", db.dump_snapshot("s.kcss"))
    with open("s.kcss", "rb") as file:
        data = file.read()
    show("file", len(data), data[:6])
    db.clear()
    told(db, "load", db.load_snapshot("s.kcss"))
    show("loaded", db.get("a"), db.count())
    told(db, "load none", db.load_snapshot("none.kcss"))
    with open("bad.kcss", "wb") as file:
        file.write(b"no dump at all")
    told(db, "load bad", db.load_snapshot("bad.kcss"))
    told(db, "dump nowhere", db.dump_snapshot("none/s.kcss"))
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
        told(db, "merge", db.merge([one, other], mode))
        show("merged", [(key, db.get(key)) for key in db])
    told(db, "merge none", db.merge([]))


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
    told(db, "cursor", cursor.get())
    told(db, "close", db.close())
    told(db, "open", db.open())
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
