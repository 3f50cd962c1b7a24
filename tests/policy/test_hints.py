"""The hints contract, read by the server, and everything that is not quite a hint."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_ext.policy.hints import IGNORED, TRIM_ROWS, Hints, read_hints

CONTRACT = Path(__file__).parents[1] / "contract"
GOLDEN = json.loads((CONTRACT / "hints.json").read_text("utf-8"))
REFUSED = json.loads((CONTRACT / "hints_ignored.json").read_text("utf-8"))
GOOD: dict[str, Any] = GOLDEN[1]["hints"]


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_the_contract_is_read(case: dict[str, Any]) -> None:
    read = read_hints({"something": "else", **case["hints"]})
    assert isinstance(read, Hints)
    for name, value in case["arguments"].items():
        expected = tuple(value) if isinstance(value, list) else value
        assert getattr(read, name) == expected


@pytest.mark.parametrize("case", REFUSED, ids=[case["name"] for case in REFUSED])
def test_what_the_contract_refuses_is_ignored(case: dict[str, Any]) -> None:
    assert read_hints(case["hints"]) is IGNORED


def test_no_hint_of_ours_is_no_hint() -> None:
    for extra in (None, {}, {"kv_transfer_params": {}}, "radixflow_v", 3, [GOOD]):
        assert read_hints(extra) is None


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_missing_hint(key: str) -> None:
    rest = {name: value for name, value in GOOD.items() if name != key}
    optional = key in ("radixflow_boundaries", "radixflow_scored_from")
    assert (read_hints(rest) is IGNORED) != optional


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("radixflow_v", [0, 2, True, "1", 1.0, None]),
        ("radixflow_group", ["", "a b", "x" * 129, "é", "a\n", 3, None, ["a"]]),
        ("radixflow_role", ["", "Producer", None, 1, ["consumer"]]),
        ("radixflow_branches", [0, -1, 4097, 2**63, "4", 4.0, True, None]),
        ("radixflow_boundaries", [1, "1", None, [0], [-1], [2**31], [True], [1.0]]),
        ("radixflow_boundaries", [["1"], [2, 1], [2, 2], [[1]], {1: 2}, [1, None]]),
        ("radixflow_boundaries", [list(range(1, 66))]),
        ("radixflow_scored_from", [-1, 2**31, "1", 1.5, True, None]),
        ("radixflow_internal", ["x", 3, None, ["trim_rows"]]),
        ("radixflow_unknown", [1]),
    ],
)
def test_a_malformed_hint_is_ignored(key: str, values: list[object]) -> None:
    for value in values:
        assert read_hints({**GOOD, key: value}) is IGNORED, value


def test_only_our_endpoint_can_ask_for_less() -> None:
    plain, trimmed = read_hints(GOOD), read_hints({**GOOD, **TRIM_ROWS})
    assert isinstance(plain, Hints)
    assert isinstance(trimmed, Hints)
    assert (plain.trim_rows, trimmed.trim_rows) == (False, True)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
_keys = st.sampled_from([*GOOD, "radixflow_internal", "radixflow_x"]) | st.text()


@given(st.dictionaries(_keys, _scalars | st.lists(_scalars) | st.just({"a": 1})))
def test_reading_never_raises(extra: dict[str, Any]) -> None:
    for args in (extra, {**GOOD, **extra}):
        assert read_hints(args) is not False
