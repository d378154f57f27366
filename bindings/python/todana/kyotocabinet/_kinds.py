"""Maps Kyoto Cabinet's names of databases to Todana's kinds; opens, copies and measures them."""

import os

import todana

from ._error import Error, Failure

# Kyoto Cabinet's numbers for kinds of databases, by their names and suffixes.
_NUMBERS = {"-": 0x10, "+": 0x11, ":": 0x18, "*": 0x20, "%": 0x21, "kch": 0x30, "kct": 0x31, "kcd": 0x40, "kcf": 0x41}


def _suffix(path):
    return path.rpartition(".")[2]


def _is_in_memory(path):
    return path in _NUMBERS and len(path) == 1 or path.startswith("mem:")


def number(path):
    """Returns the number of a kind as text."""
    return str(_NUMBERS.get(path, _NUMBERS.get(_suffix(path), 0)))


def opened(name, mode, modes):
    """Opens a database. `modes` has the constants of `mode`."""
    path, _, tuning = name.partition("#")
    is_writer, is_on_disk = mode & modes.OWRITER, not _is_in_memory(path)
    if is_on_disk and os.path.isfile(path):
        _make_way(path, is_writer)
    if is_on_disk and not os.path.exists(path):
        folder = os.path.dirname(os.path.abspath(path))
        if not is_writer or not mode & modes.OCREATE or not os.path.isdir(folder):
            raise Failure(Error.NOREPOS, "open failed (file not found)")
    if is_writer and mode & modes.OTRUNCATE and "mode=" not in tuning:
        name += "#mode=wct"
    options = {"sync": "always"} if mode & modes.OAUTOSYNC and is_on_disk else {}
    return todana.DB(name, read_only=not is_writer and is_on_disk, original_names=True, **options)


def _make_way(path, is_writer):
    """Removes an empty file, so that a database can take its place. Fails if the file is not empty.

    The original turns an empty file into a database. A database of Todana is a folder.
    """
    if os.path.getsize(path) or not is_writer:
        message = f"{path}: a file of Kyoto Cabinet cannot be opened; import its records with todana load --bare"
        raise Failure(Error.BROKEN, message)
    os.remove(path)


def of_copy(name, path):
    """Returns the name of a copy, with the kind of the source unless the name has one."""
    known = _suffix(name) in ("hash", "tree", "kch", "kct", "kcd", "kcf") or "#type=" in name
    return name if known else f"{name}#type={'kct' if path in ('%', '+') or _suffix(path) in ('kct', 'kcf') else 'kch'}"


def size(base, path):
    """Returns the size of the files or of the memory in bytes."""
    if not os.path.isdir(path):
        return base.status()["memory_bytes"]
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(folder, name))
            except FileNotFoundError:
                pass  # The file was removed after it was listed.
    return total
