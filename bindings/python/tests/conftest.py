import pytest

import todana


@pytest.fixture(params=["mem:hash", "mem:tree", "disk.hash", "disk.tree"])
def place(request, tmp_path):
    """Returns the name of a new database of each kind."""
    name = request.param
    return name if name.startswith("mem:") else str(tmp_path / name)


@pytest.fixture
def db(place):
    with todana.open(place) as db:
        yield db


@pytest.fixture(params=["disk.hash", "disk.tree", "mem:hash", "mem:tree"])
def durable(request, tmp_path):
    """Returns name and options of a database of each kind that survives the process."""
    name = request.param
    if name.startswith("mem:"):
        return name, {"data_dir": str(tmp_path / "data")}
    return str(tmp_path / name), {}


@pytest.fixture
def tree():
    with todana.open("mem:tree") as db:
        yield db
