"""Prefix trees for vLLM's requests: who waits, where chunks end, what is published.

`StopPlanner` keeps a `PrefixTree` in step with the scheduler and translates between
tokens and match units.  The scheduler tells it what happens to a request, and asks
where its next chunk should end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain, islice

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request

from server_ext.engine import compat
from server_ext.engine.publication import PlannedStops, is_decoding
from server_ext.policy.config import Policy
from server_ext.policy.hints import Hints
from server_ext.policy.tree import Point, PrefixTree

__all__ = ["StopPlanner", "make_planner"]

logger = init_logger("vllm.radixflow")

MAX_CROWDED_ROUNDS = 64
"""Rounds that a request gives way to checkpoints in use before it runs regardless."""
MAX_COUNTED = 256
"""Points that are counted to find out whether the cache is crowded."""
CROWDED = 0.15
"""Share of the pool that checkpoints in use may take before others are computed."""


class StopPlanner:
    """One plan for all requests of a scheduler.

    Args:
        tree: an empty tree.
        block_size: tokens of a cache block.
        stops: where publication reads the planned stops.
        pool_blocks: blocks of the cache.
        groups: recurrent cache groups; each takes a block and a copy of it.
        use_hints: use boundaries and branch counts that requests announce.
        by_priority: vLLM serves requests by priority.
    """

    def __init__(
        self,
        tree: PrefixTree,
        block_size: int,
        stops: PlannedStops,
        *,
        pool_blocks: int,
        groups: int,
        use_hints: bool,
        by_priority: bool,
    ) -> None:
        self.tree = tree
        self._block_size = block_size
        self._stops = stops
        self._crowded_blocks = pool_blocks * CROWDED
        self._groups = groups
        self._use_hints = use_hints
        self._by_priority = by_priority
        self._unplanned: dict[str, tuple[int, ...]] = {}
        self._prefilling: set[str] = set()
        self._decided: tuple[str, int, int] = ("", 0, 0)
        self._needs: dict[str, tuple[int, int]] = {}
        self._gave_way: dict[str, int] = {}

    # -- the life of a request ---------------------------------------------------

    def arrived(self, request: Request, keys: bytes, hints: Hints | None) -> None:
        """Plan for a new request; a streaming session stays native.

        Args:
            request: the request.
            keys: its prefix keys, `KEY_BYTES` for each match unit.
            hints: its hints, if it has usable ones.
        """
        if request.resumable:
            return
        name, unit = request.request_id, self.tree.unit
        scored_from = 0 if hints is None else hints.scored_from
        last = request.num_prompt_tokens - 1
        # A hit must leave the row before the first scored token to be computed.
        reach = min(last, scored_from - 1) if scored_from else last
        end = self.tree.add(
            name,
            keys[: max(reach, 0) // unit * (len(keys) and 8)],
            rank=(request.priority, request.arrival_time) if self._by_priority else (),
            resumes=not request.skip_reading_prefix_cache,
        )
        if hints is not None and hints.boundaries and self._use_hints:
            self._expect(request, hints)
            return
        in_block = last // self._block_size * self._block_size // unit
        self._unplanned[name] = in_block, last // unit
        if request.max_tokens > 1 and end.parent is not None and not end.published:
            end.expected = max(end.expected, 1)  # the next turn of a chat goes on here

    def _expect(self, request: Request, hints: Hints) -> None:
        """Use what a client announces: where prompts part, and its missing branches."""
        name, unit = request.request_id, self.tree.unit
        depths = [tokens // unit for tokens in hints.boundaries]
        self.tree.expect(name, depths)
        group = (request.cache_salt, hints.group)
        self.tree.expect_group(name, group, depths[-1], hints.branches)

    def admitted(self, request: Request, hit: int) -> None:
        """The request enters the batch behind a hit of `hit` tokens."""
        if request.request_id in self.tree:
            self.tree.admitted(request.request_id, hit // self.tree.unit)
            self._prefilling.add(request.request_id)
            self._needs.pop(request.request_id, None)
            self._gave_way.pop(request.request_id, None)

    def preempted(self, request: Request) -> None:
        """The request waits again, from its beginning."""
        name = request.request_id
        if name in self.tree:
            self.tree.preempted(name)
            self._prefilling.discard(name)
            self._stops.restart(name)

    def resigns(self, request: Request) -> None:
        """The request cannot run now for a reason of its own: nobody waits for it."""
        self.tree.resigns(request.request_id)

    def finished(self, request_id: str) -> None:
        """The request has left the scheduler."""
        self.tree.finished(request_id)
        self._unplanned.pop(request_id, None)
        self._prefilling.discard(request_id)
        self._needs.pop(request_id, None)
        self._gave_way.pop(request_id, None)
        self._stops.forget(request_id)

    def round_planned(self, requests: Iterable[Request]) -> None:
        """A round takes these requests to their ``num_computed_tokens``."""
        unit = self.tree.unit
        for request in requests:
            name = request.request_id
            if name not in self._prefilling:
                continue
            end = request.num_computed_tokens
            self.tree.advanced(
                name, end // unit, published=self._stops.publishes(request, end)
            )
            if is_decoding(request):
                self._prefilling.discard(name)

    # -- questions ---------------------------------------------------------------

    def plans(self, request: Request) -> bool:
        """Whether the request's chunks are planned here; others are native."""
        return request.request_id in self.tree

    def blocking_point(self, request_id: str) -> Point | None:
        """The point at which a waiting request should wait, None if it may run."""
        return self.tree.blocking_point(request_id)

    def deferred(self, request: Request, needs: int) -> None:
        """Remember the chunk of a deferred request, to spare it a lookup."""
        name = request.request_id
        self._needs[name] = self.tree.published_depth(name), needs

    def gives_way(self, request: Request) -> bool:
        """Whether a request waits a round for checkpoints in use; bounded for each."""
        rounds = self._gave_way.get(request.request_id, 0)
        if rounds >= MAX_CROWDED_ROUNDS:
            return False
        self._gave_way[request.request_id] = rounds + 1
        return True

    def known_needs(self, request: Request) -> int | None:
        """The chunk that a deferred request needs, None once it may need less.

        An evicted checkpoint only makes the chunk longer.
        """
        name = request.request_id
        depth, needs = self._needs.get(name, (-1, 0))
        return needs if depth == self.tree.published_depth(name) else None

    def point_of(self, request: Request, hit: int) -> Point | None:
        """The point at the end of a hit, where others wait to resume from it too."""
        return self.tree.shared_point(request.request_id, hit // self.tree.unit)

    def leads(self, request: Request) -> bool:
        """Whether the chunk that `start` decided on leaves a checkpoint for others."""
        return self._decided[0] == request.request_id and self._decided[2] > 0

    def is_crowded(self, point: Point | None, open_points: Collection[Point]) -> bool:
        """Whether a new checkpoint should wait until others are used (depth first).

        So where checkpoints that requests wait for fill their share of the pool, unless
        the request resumes from one with no other below it.

        Args:
            point: where the request resumes, if others wait to resume from it too.
            open_points: published points with waiting requests behind them.
        """
        if self._blocks_in_use(open_points) <= self._crowded_blocks:
            return False
        return point is None or self._is_above(point, open_points)

    def _blocks_in_use(self, open_points: Collection[Point]) -> int:
        """Cache blocks that checkpoints take which requests wait for, at least."""
        per_block, copies = self._block_size // self.tree.unit, 2 * self._groups
        blocks = 0
        for point in islice(open_points, MAX_COUNTED):
            above = 0 if point.parent is None else point.parent.depth
            blocks += (point.depth - above) // per_block + 1 + copies
        for name in self._prefilling:
            if stop := self._stops.planned(name):
                blocks += stop // self._block_size + 1 + copies
        return blocks

    def _is_above(self, point: Point, open_points: Collection[Point]) -> bool:
        """Whether a checkpoint in use, or one on its way, lies below `point`."""
        led = (
            self.tree.end_of(name)
            for name in self._prefilling
            if self._stops.planned(name)
        )
        below = chain(islice(open_points, MAX_COUNTED), led)
        return any(other is not point and _is_below(other, point) for other in below)

    def start(self, request: Request, hit: int) -> int | None:
        """Length of the first chunk of a waiting request behind a hit, in tokens.

        Returns:
            None where the request should wait after all: a checkpoint that it counted
            on has been evicted, and another request is about to compute it.
        """
        name, unit = request.request_id, self.tree.unit
        lost = self.tree.observe_hit(name, hit // unit)
        if lost and self.tree.blocking_point(name) is not None:
            return None
        stop = self._next_stop(name, hit)
        self._decided = (name, hit, stop)
        return (stop or request.num_tokens) - hit

    def chunk(self, request: Request, start: int, tokens: int) -> int:
        """Tokens of the chunk that begins at `start`, at most `tokens`."""
        name = request.request_id
        decided_for, decided_at, stop = self._decided
        if (decided_for, decided_at) != (name, start):
            stop = self._next_stop(name, start)
        self._stops.plan(name, stop)
        return min(tokens, stop - start) if stop else tokens

    def new_round(self) -> None:
        """Nothing decided for a request in one round holds in the next."""
        self._decided = ("", 0, 0)

    def _next_stop(self, name: str, start: int) -> int:
        unit = self.tree.unit
        unplanned = self._unplanned.get(name)
        return self.tree.next_stop(name, start // unit, unplanned) * unit


def make_planner(
    policy: Policy, scheduler: AsyncScheduler, stops: PlannedStops, groups: int
) -> StopPlanner | None:
    """A planner where chunks may end anywhere, None where the native ends stay.

    Args:
        policy: whether to plan, and what a row and a round cost.
        scheduler: whose block size, rows and pool count; read only.
        stops: where publication reads the planned stops; emptied.
        groups: recurrent cache groups.
    """
    stops.clear()
    if not policy.tree or not groups:
        return None
    if reason := compat.keeps_native_checkpoints(scheduler.vllm_config):
        logger.warning(
            "RadixFlow: %s keeps vLLM's own checkpoints; prefix trees are off", reason
        )
        return None
    unit, block = scheduler.hash_block_size, scheduler.block_size
    return StopPlanner(
        PrefixTree(
            unit,
            block=block // unit,
            rows=scheduler.max_num_running_reqs,
            row_tokens=policy.row_tokens or 0,
            round_tokens=policy.round_tokens or 0,
        ),
        block,
        stops,
        pool_blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
        groups=groups,
        use_hints=policy.hints,
        by_priority=scheduler.policy == SchedulingPolicy.PRIORITY,
    )


def _is_below(point: Point, above: Point) -> bool:
    parent = point.parent
    while parent is not None and parent.depth > above.depth:
        parent = parent.parent
    return parent is above
