"""Who is ready."""

import pytest

from server_ext.policy.readiness import CommitFence, Readiness, classify

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


def test_the_fence_holds_a_state_until_its_round_has_run() -> None:
    fence = CommitFence()
    fence.processed()  # nothing was planned
    fence.planned(["a", "b"])
    fence.planned(["a"])
    assert "a" in fence
    fence.processed()
    assert [key in fence for key in ("a", "b", "c")] == [True, False, False]
    fence.processed()
    assert "a" not in fence
    assert len(fence) == 0
