"""The prefix tree alone: the promises of its docstring, and random lives."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from server_ext.policy.tree import (
    KEY_BYTES,
    MAX_BRANCHES,
    MAX_EXPECTED,
    Point,
    PrefixTree,
)


def keys(text: str) -> bytes:
    """Chained keys, one for each letter of a text."""
    digest, result = b"", b""
    for letter in text:
        digest = sha256(digest + letter.encode()).digest()
        result += digest[:KEY_BYTES]
    return result


def points(tree: PrefixTree) -> Iterator[Point]:
    """All points below the root."""
    stack = list(tree.root.children.values())
    while stack:
        point = stack.pop()
        yield point
        stack += point.children.values()


def tree_of(*texts: str, **options: int) -> PrefixTree:
    """A tree whose requests are numbered, each one asked once in order."""
    tree = PrefixTree(16, **options)
    for item, text in enumerate(texts):
        tree.add(item, keys(text))
        tree.blocking_point(item)
    return tree


def test_a_request_makes_at_most_two_points() -> None:
    tree = PrefixTree(16)
    for item, text in enumerate(("", "aaaa", "aabb", "aabb", "aa", "b", "aabbcc")):
        before = tree.points
        end = tree.add(item, keys(text))
        assert end.depth == len(text)
        assert tree.points - before <= 2
    assert sorted(p.depth for p in points(tree)) == [1, 2, 4, 4, 6]
    assert tree.points == 5


def test_the_first_leads_and_its_siblings_wait_where_they_part() -> None:
    tree = tree_of("aaaab", "aaaac", "aaaad")
    assert tree.blocking_point(0) is None
    waiting = [tree.blocking_point(item) for item in (1, 2)]
    assert waiting[0] is waiting[1]
    assert waiting[0] is not None
    assert (waiting[0].depth, waiting[0].leader) == (4, 0)
    assert tree.next_stop(0, 0) == 4


def test_they_run_once_the_point_is_published() -> None:
    tree = tree_of("aaaab", "aaaac", row_tokens=8, round_tokens=32)
    tree.admitted(0, 0)
    tree.advanced(0, 4, published=True)
    assert [point.depth for point in tree.released] == [4]
    assert tree.blocking_point(1) is None
    assert tree.next_stop(0, 4) == 0


@pytest.mark.parametrize("how", ["finished", "resigns", "passes"])
def test_a_point_without_a_leader_is_released(how: str) -> None:
    tree = tree_of("aaaab", "aaaac", "aaaad")
    match how:
        case "finished":
            tree.finished(0)
        case "resigns":
            tree.resigns(0)
        case _:
            tree.admitted(0, 0)
            tree.advanced(0, 5, published=False)
    assert 4 in [point.depth for point in tree.released]
    assert tree.blocking_point(1) is None
    point = tree.blocking_point(2)
    assert point is not None
    assert point.leader == 1


def test_who_waits_leads_nowhere() -> None:
    tree = tree_of("aaaabbbbx", "aaaabbbby", "aaaac")
    tree.resigns(0)
    assert tree.blocking_point(2) is None  # leads at "aaaa"
    assert tree.blocking_point(1) is not None
    assert {point.leader for point in points(tree)} <= {2, None}


def test_who_may_not_resume_waits_for_nobody_and_can_lead() -> None:
    tree = PrefixTree(16)
    tree.add("reads", keys("aaaab"))
    assert tree.blocking_point("reads") is None
    tree.add("never reads", keys("aaaac"), resumes=False)
    assert tree.blocking_point("never reads") is None
    assert tree.root.waiting == 1


def test_nobody_waits_for_a_waiting_leader_of_a_higher_rank() -> None:
    tree = PrefixTree(16)
    tree.add("late", keys("aaaab"), rank=(5, 0.0))
    assert tree.blocking_point("late") is None
    tree.add("first", keys("aaaac"), rank=(0, 1.0))
    assert tree.blocking_point("first") is None
    assert tree.blocking_point("late") is not None


def test_a_stop_that_does_not_pay_is_not_made_nor_waited_for() -> None:
    tree = tree_of("ab", "ac", row_tokens=16, round_tokens=256)
    assert tree.blocking_point(1) is None
    assert tree.next_stop(0, 0) == 0


def test_each_step_must_pay_over_the_step_before() -> None:
    """A shared question too short for a stop of its own: wait for the document."""
    document, question = "d" * 18, "q"
    tree = tree_of(
        *(document + question + end for end in "abcd"), row_tokens=16, round_tokens=256
    )
    tree.expect(0, [18])
    depths = {getattr(tree.blocking_point(item), "depth", 0) for item in (1, 2, 3)}
    assert depths == {tree.next_stop(0, 0)}


def test_an_idle_server_keeps_the_native_stops() -> None:
    tree = tree_of("aaaab", row_tokens=16, round_tokens=256)
    assert tree.next_stop(0, 0, (4, 5)) == 4
    assert tree.next_stop(0, 4, (4, 5)) == 5
    assert tree.next_stop(0, 5, (4, 5)) == 0
    tree.add(1, keys("zz"))
    assert tree.next_stop(0, 0, (4, 5)) == 0


def test_a_lost_checkpoint_is_computed_again() -> None:
    tree = tree_of("aaaab", "aaaac", "aaaad")
    tree.admitted(0, 0)
    tree.advanced(0, 4, published=True)
    assert not tree.observe_hit(1, 4)
    assert tree.observe_hit(1, 0)
    assert tree.blocking_point(1) is None
    assert tree.blocking_point(2) is not None
    assert tree.next_stop(1, 0) == 4


def test_what_is_expected_is_bounded() -> None:
    tree = PrefixTree(16)
    tree.add(0, keys("aaaab"))
    tree.expect(0, [-1, 0, 2, 4, 9, 10**9])
    tree.expect_group(0, "g", 4, 10**6)
    assert max(point.expected for point in points(tree)) == MAX_BRANCHES
    for item in range(1, 3 * MAX_EXPECTED):
        tree.add(item, keys("c"))
        tree.admitted(item, 0)
        tree.advanced(item, 1, published=False)
        tree.finished(item)
    (other,) = (point for point in points(tree) if point.depth == 1)
    assert other.expected == MAX_EXPECTED


def test_a_groups_missing_branches_are_counted_down() -> None:
    tree = PrefixTree(16)
    for item in range(3):
        tree.add(item, keys("aaaa" + "bcd"[item]))
        tree.expect_group(item, "g", 4, 3)
        (parting,) = (point for point in points(tree) if point.depth == 4)
        assert parting.expected == 2 - item


def test_what_ended_is_remembered_within_bounds() -> None:
    tree = PrefixTree(16, max_leaves=10, max_units=60)
    for item in range(500):
        tree.add(item, keys(f"a{item:03d}" + "x" * (item % 7)))
        tree.blocking_point(item)
        tree.finished(item)
        assert tree.points <= 2 * 10
    assert tree._leaf_units <= 60
    assert len(tree) == tree.root.waiting == 0


TEXTS = st.lists(st.sampled_from(("a", "bb", "ccc")), max_size=5).map("".join)


class Lives(RuleBasedStateMachine):
    """Requests come, wait, run, are preempted, and go; a queue asks as ours does."""

    @initialize(
        costs=st.sampled_from(((0, 0), (8, 32), (16, 256))), leaves=st.integers(0, 4)
    )
    def start(self, costs: tuple[int, int], leaves: int) -> None:
        self.tree = PrefixTree(
            16,
            block=2,
            row_tokens=costs[0],
            round_tokens=costs[1],
            max_leaves=leaves,
        )
        self.texts: dict[int, str] = {}
        self.reads: dict[int, bool] = {}
        self.waiting: dict[int, Point | None] = {}
        self.running: dict[int, int] = {}
        self.cache: set[str] = set()
        self.next = 0

    def ask_released(self) -> None:
        while self.tree.released:
            released = self.tree.released.copy()
            self.tree.released.clear()
            for item, point in self.waiting.items():
                if point is not None and any(point is one for one in released):
                    self.waiting[item] = self.tree.blocking_point(item)

    def hit(self, item: int) -> int:
        text = self.texts[item]
        lengths = range(len(text), 0, -1) if self.reads[item] else ()
        return next((n for n in lengths if text[:n] in self.cache), 0)

    @rule(
        text=TEXTS,
        reads=st.sampled_from((True, True, True, False)),
        rank=st.sampled_from(((), (0,), (1,))),
        boundary=st.none() | st.integers(0, 9),
        branches=st.integers(1, 5),
    )
    def arrive(
        self,
        text: str,
        reads: bool,
        rank: tuple[int, ...],
        boundary: int | None,
        branches: int,
    ) -> None:
        item, self.next = self.next, self.next + 1
        before = self.tree.points
        self.tree.add(item, keys(text), rank=rank or (0,), resumes=reads)
        assert self.tree.points - before <= 2
        self.texts[item], self.reads[item] = text, reads
        if boundary is not None:
            self.tree.expect(item, [boundary])
            self.tree.expect_group(item, branches, boundary, branches)
        self.waiting[item] = self.tree.blocking_point(item)

    def run_chunk(self, item: int, start: int) -> None:
        stop = self.tree.next_stop(item, start, (len(self.texts[item]),))
        assert stop == 0 or start < stop <= len(self.texts[item])
        end = stop or len(self.texts[item])
        self.tree.advanced(item, end, published=bool(stop))
        if stop:
            self.cache.add(self.texts[item][:stop])
        self.running[item] = end

    def admit(self, item: int) -> None:
        point = self.tree.blocking_point(item)
        if point is None:
            hit = self.hit(item)
            lost = self.tree.observe_hit(item, hit)
            point = self.tree.blocking_point(item) if lost else None
        if point is not None:
            self.waiting[item] = point
            return
        del self.waiting[item]
        self.tree.admitted(item, hit)
        self.run_chunk(item, hit)

    @rule(data=st.data())
    def admit_one(self, data: st.DataObject) -> None:
        if ready := [item for item, point in self.waiting.items() if point is None]:
            self.admit(data.draw(st.sampled_from(ready)))

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        if self.running:
            item = data.draw(st.sampled_from(sorted(self.running)))
            if self.running[item] < len(self.texts[item]):
                self.run_chunk(item, self.running[item])
            else:
                self.end(item)

    @rule(data=st.data(), resigns=st.booleans())
    def preempt(self, data: st.DataObject, resigns: bool) -> None:
        if self.running:
            item = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[item]
            self.tree.preempted(item)
            if resigns:
                self.tree.resigns(item)
            self.waiting[item] = self.tree.blocking_point(item)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if here := sorted(self.waiting.keys() | self.running.keys()):
            self.end(data.draw(st.sampled_from(here)))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        if self.cache:
            self.cache.discard(data.draw(st.sampled_from(sorted(self.cache))))

    def end(self, item: int) -> None:
        self.waiting.pop(item, None)
        self.running.pop(item, None)
        self.tree.finished(item)

    @invariant()
    def whoever_waits_has_a_leader_that_does_not(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.ask_released()
        blocked = {item for item, point in self.waiting.items() if point is not None}
        leaders = {point.leader for point in points(self.tree)} - {None}
        assert not blocked & leaders
        assert leaders <= self.waiting.keys() | self.running.keys()
        here = {id(point) for point in points(self.tree)}
        for item in blocked:
            point = self.waiting[item]
            assert point is not None
            assert id(point) in here
            assert point.leader is not None

    @invariant()
    def counts_equal_a_recount(self) -> None:
        if not hasattr(self, "tree"):
            return
        assert len(self.tree) == len(self.waiting) + len(self.running)
        prompts = [self.texts[i] for i in self.waiting if self.reads[i]]
        ends = [self.texts[i] for i in self.waiting.keys() | self.running.keys()]
        meaning = {keys(t[:n]): t[:n] for t in self.texts.values() for n in range(99)}
        seen = 0
        stack = [(b"", point) for point in self.tree.root.children.values()]
        while stack:
            above, point = stack.pop()
            prefix = above + point.edge
            text = meaning[prefix]
            assert len(text) == point.depth
            assert point.waiting == sum(p.startswith(text) for p in prompts)
            assert point.ends == ends.count(text)
            stack += [(prefix, child) for child in point.children.values()]
            seen += 1
        assert self.tree.points == seen
        assert self.tree.root.waiting == len(prompts)

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for _ in range(50 * (1 + len(self.texts))):
            self.ask_released()
            if self.running:
                item = next(iter(self.running))
                if self.running[item] < len(self.texts[item]):
                    self.run_chunk(item, self.running[item])
                else:
                    self.end(item)
                continue
            ready = [item for item, point in self.waiting.items() if point is None]
            if not ready:
                break
            self.admit(ready[0])
        assert not self.waiting, "requests wait for ever"
        assert not self.running
        assert len(self.tree) == self.tree.root.waiting == 0
        for point in points(self.tree):
            assert (point.waiting, point.ends, point.leader) == (0, 0, None)


Lives.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, database=None
)
TestLives = Lives.TestCase
