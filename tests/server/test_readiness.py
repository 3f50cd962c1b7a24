"""Who is ready."""

import pytest

from server_ext.readiness import Readiness, classify

READY, BLOCKED = Readiness.READY, Readiness.BLOCKED


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ([], READY),
        ([(None, {"a"})], READY),
        ([("a", set())], READY),
        ([("a", {"b"})], READY),
        ([("a", {"a", "b"})], BLOCKED),
        ([(None, {"a"}), ("b", {"a"})], READY),
        ([("b", {"a"}), ("b", {"b"})], BLOCKED),
    ],
    ids=["no groups", "no hit", "quiet", "others", "written", "one of two", "second"],
)
def test_a_state_written_in_this_round_blocks(
    hits: list[tuple[str | None, set[str]]], expected: Readiness
) -> None:
    assert classify(iter(hits)) is expected
