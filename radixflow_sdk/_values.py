"""What apps hand over, as plain Python: arrays, Series, generators, whole numbers.

Only what means one thing is converted. A set has no order and a mapping is no list, so
both stay as they are and are refused where the arguments are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Sequence, ValuesView
from operator import index
from typing import Any

_PLAIN = frozenset({str, int, bool})
_LISTS = ("tolist", "to_list", "to_pylist")
"""How numpy and pandas, polars, and pyarrow say it."""


def as_plain(value: Any) -> Any:
    """Lists for arrays, Series and generators, and ints for other whole numbers.

    Args:
        value: An argument; a list's items are converted, too.
    """
    kind = type(value)
    if kind in _PLAIN or value is None or isinstance(value, str | bytes | bytearray):
        return value
    if isinstance(value, Iterator | KeysView | ValuesView):
        return value if _is_unordered(value) else [as_plain(item) for item in value]
    if isinstance(value, list | tuple):
        if all(map(_PLAIN.__contains__, map(type, value))):
            return value
        found = [as_plain(item) for item in value]
        same = all(map(_is, found, value))
        return value if same else found
    if not isinstance(value, Sequence):
        for name in _LISTS:
            convert = getattr(value, name, None)
            if callable(convert) and not isinstance(value, type):
                return convert()
    return _as_int(value)


def _is(one: object, other: object) -> bool:
    return one is other


def _is_unordered(items: object) -> bool:
    """Whether an iterator goes over a set, whose order means nothing."""
    return type(items) is type(iter(frozenset()))


def _as_int(value: Any) -> Any:
    if not hasattr(type(value), "__index__"):
        return value
    try:
        return index(value)
    except TypeError:
        return value  # as a numpy.bool, which has the method and refuses
