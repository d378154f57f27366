"""Records whose keys are numbers, and several values of a key."""

import pytest

import todana


@pytest.fixture(params=["mem:fixed#width=8", "disk.fixed#width=8"])
def db(request, tmp_path):
    name = request.param
    with todana.open(name if name.startswith("mem:") else str(tmp_path / name), text=True) as db:
        yield db


@pytest.fixture
def fixed(db):
    return db.fixed()


@pytest.fixture(params=["mem:tree", "disk.tree"])
def tree(request, tmp_path):
    name = request.param
    with todana.open(name if name.startswith("mem:") else str(tmp_path / name), text=True) as db:
        yield db


def test_keys_are_numbers(db, fixed):
    fixed[7] = "seven"
    assert fixed[7] == "seven" == db["7"] and 7 in fixed and 8 not in fixed and 0 not in fixed
    assert fixed.get(8) is None and fixed.get(8, "x") == "x"
    assert fixed.add(9, "nine") and not fixed.add(9, "neuf")
    assert list(fixed) == [7, 9] and list(reversed(fixed)) == [9, 7] and len(fixed) == 2
    del fixed[7]
    for missing in (lambda: fixed[7], lambda: fixed.__delitem__(7)):
        with pytest.raises(KeyError):
            missing()
    for number, value in [(0, "x"), (1, "longer than 8"), (fixed.number_max + 1, "x")]:
        with pytest.raises(todana.InvalidError):
            fixed[number] = value
    with pytest.raises(OverflowError):
        fixed[-1]


def test_ends_have_neighbours(fixed):
    assert fixed.width == 8 and fixed.number_max > 1000
    assert fixed.min() is None and fixed.max() is None
    fixed[10] = "ten"
    assert fixed.add_next("eleven") == 11 and fixed.add_prev("nine") == 9
    assert (fixed.min(), fixed.max()) == (9, 11)
    fixed[1] = "one"
    with pytest.raises(todana.InvalidError):
        fixed.add_prev("none")


def test_range_is_an_interval(fixed):
    for number in range(3, 3001, 3):
        fixed[number] = str(number)
    assert list(fixed.keys(10, 16)) == [12, 15] and list(fixed.keys(10, 15)) == [12]
    assert list(fixed.items(2998)) == [(3000, "3000")]
    assert list(fixed.values(stop=7, reverse=True)) == ["6", "3"]
    assert list(fixed.keys()) == list(range(3, 3001, 3))
    assert list(fixed.keys(reverse=True)) == list(range(3000, 0, -3))
    assert list(fixed.keys(5, 5)) == [] == list(fixed.keys(stop=0))


def test_transaction_has_numbers(db, fixed):
    with db.transaction() as t:
        t.fixed()[5] = "five"
        assert t.fixed()[5] == "five" and 5 not in fixed
        with pytest.raises(todana.InvalidError):
            t.fixed().add_next("six")
    assert fixed[5] == "five"


def test_key_has_several_values(tree):
    tree.add_value("k", "b")
    tree.add_value("k", "c")
    tree.add_value("k", "a", first=True)
    assert tree.get_values("k") == ["a", "b", "c"] and tree["k"] == "a" and len(tree) == 1
    del tree["k"]
    assert tree.get_values("k") == ["b", "c"]
    with tree.snapshot() as then, tree.transaction() as t:
        t.add_value("k", "d")
        assert t.get_values("k") == ["b", "c", "d"]
        t.commit()
        assert then.get_values("k") == ["b", "c"] and then["k"] == "b"
    assert tree.get_values("k") == ["b", "c", "d"]
    assert tree.remove_values("k") and not tree.remove_values("k")
    assert tree.get_values("k") == [] and "k" not in tree
