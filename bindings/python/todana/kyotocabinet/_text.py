"""Conversions of keys, values and numbers as in Kyoto Cabinet's module, and its functions for them.
"""

import re

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
_MASK = 2**64 - 1
_INTEGER = re.compile(r"[\x00-\x20]*([+-]?\d+)", re.ASCII)
_REAL = re.compile(r"[\x00-\x20]*([+-]?(?:inf|nan|\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?))", re.ASCII | re.IGNORECASE)


def conv_bytes(value):
    """Converts any object to bytes: text to UTF-8, None to no bytes, any other object with str().
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if value is None:
        return b""
    try:
        return str(value).encode()
    except UnicodeEncodeError:
        return b""


def text(value):
    """Returns bytes as text, without invalid UTF-8."""
    return value.decode("utf-8", "ignore")


def _text_of(value):
    return conv_bytes(value).decode("latin-1")


def atoi(value):
    """Converts the beginning of a text to an integer."""
    found = _INTEGER.match(_text_of(value))
    return int(found[1]) if found else 0


def atof(value):
    """Converts the beginning of a text to a real number."""
    found = _REAL.match(_text_of(value))
    return float(found[1]) if found else 0.0


def atoix(value):
    """Converts a text with a binary metric prefix to an integer."""
    content = _text_of(value)
    found = _REAL.match(content)
    if not found:
        return 0
    suffix = content[found.end() :].lstrip()[:1].lower()
    return _integer(float(found[1]) * 1024 ** ("kmgtpe".find(suffix) + 1 if suffix else 0))


def _integer(number):
    if number != number:
        return INT64_MIN
    return int(min(max(number, float(INT64_MIN)), float(INT64_MAX)))


def integer(value):
    """Returns a number of any kind as an integer."""
    if isinstance(value, int):
        return int(value)
    found = real(value)
    if found in (float("inf"), float("-inf")):
        return INT64_MAX if found > 0 else INT64_MIN
    return _integer(found)


def real(value):
    """Returns a number of any kind as a real number."""
    if value is None:
        return 0.0
    return atof(value) if isinstance(value, (str, bytes)) else float(value)


def hash_murmur(value):
    """Returns the hash of Kyoto Cabinet's variant of MurmurHash64A, which multiplies before it
    mixes.
    """
    data, factor = conv_bytes(value), 0xC6A4A7935BD1E995
    found = (19780211 ^ (len(data) * factor)) & _MASK
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        part = int.from_bytes(data[at : at + 8], "little") * factor & _MASK
        found = found * factor & _MASK ^ (part ^ part >> 47) * factor & _MASK
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * factor & _MASK
    found = (found ^ found >> 47) * factor & _MASK
    return found ^ found >> 47


def hash_fnv(value):
    """Returns the hash by FNV, with Kyoto Cabinet's factor."""
    found = 14695981039346656037
    for byte in conv_bytes(value):
        found = (found ^ byte) * 109951162811 & _MASK
    return found


def levdist(one, other, utf=False):
    """Returns the Levenshtein distance of two texts, in bytes or in characters."""
    one, other = conv_bytes(one), conv_bytes(other)
    if utf:
        one, other = text(one), text(other)
    above = list(range(len(other) + 1))
    for row, symbol in enumerate(one):
        line = [row + 1]
        for column, facing in enumerate(other):
            line.append(min(above[column + 1] + 1, line[column] + 1, above[column] + (symbol != facing)))
        above = line
    return above[-1]
