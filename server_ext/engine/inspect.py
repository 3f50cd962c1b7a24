"""What the scheduler notes and tells of itself: its state, its rounds, what arrived.

Notes change no decision.  What it tells is JSON-ready data for the API server (`plugin`
hands it over) and the replay; pages are bounded, since the engine makes one between two
rounds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from server_ext.engine import compat
from server_ext.engine.audit import avoidable_bubble
from server_ext.policy.arrivals import Arrival
from server_ext.policy.hints import Hints

if TYPE_CHECKING:
    from server_ext.engine.scheduler import RadixFlowScheduler

__all__ = ["arrivals_page", "note_arrival", "note_round", "rounds_page", "snapshot"]

PAGE_ROWS = 2048
"""Rows after which a page of rounds ends."""


def note_arrival(
    scheduler: RadixFlowScheduler, request: Request, keys: bytes, hints: Hints | None
) -> None:
    """Note a request that has just arrived."""
    scheduler.arrivals.add(
        Arrival(
            name=request.request_id,
            after=scheduler.log.counters.rounds,
            at=scheduler.clock(),
            tokens=request.num_prompt_tokens,
            generates=request.max_tokens,
            reads_cache=not request.skip_reading_prefix_cache,
            keys=keys,
            hints=hints,
        )
    )


def note_round(scheduler: RadixFlowScheduler, output: SchedulerOutput) -> None:
    """Note a round that has just been planned; in debug mode, audit it.

    Raises:
        AvoidableBubbleError: it left a READY branch out, under a policy with traversal.
    """
    log, scheduled = scheduler.log, output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        log.admitted(len(new.prompt_token_ids or ()), new.num_computed_tokens)
    audits = scheduler.audits and scheduled
    bubble = avoidable_bubble(scheduler, output) if audits else None
    running, waiting = scheduler.get_request_counts()
    ended = log.round_ends(
        scheduled,
        host_us=round((time.perf_counter() - scheduler.round_began) * 1e6),
        running=running,
        waiting=waiting,
        held=len(scheduler.gate),
        parked=scheduler.traversal.unseen,
        overtakes=scheduler.gate.overtakes,
        bubble=bubble,
    )
    if ended is not None:
        scheduler.history.append(ended)


def snapshot(scheduler: RadixFlowScheduler) -> dict[str, Any]:
    """What ``GET /v1/radixflow/stats`` shows."""
    running, waiting = scheduler.get_request_counts()
    gate, log = scheduler.gate, scheduler.log
    return {
        "vllm_version": compat.check_version(),
        "scheduler": type(scheduler).__name__,
        "policy": scheduler.policy_preset.as_dict(),
        "settings": _settings(scheduler),
        "counters": {
            **log.counters.as_dict(),
            "held": gate.deferrals,
            "overtakes": gate.overtakes,
        },
        "gauges": {
            "running": running,
            "waiting": waiting,
            "held": len(gate),
            "parked": scheduler.traversal.unseen,
            "oldest_blocked_s": log.oldest_blocked(scheduler.clock()),
            "longest_hold_s": gate.longest,
        },
    }


def rounds_page(scheduler: RadixFlowScheduler, number: int) -> dict[str, Any]:
    """A page of the kept rounds after `number`, oldest first; `newest` is the last."""
    page: list[dict[str, object]] = []
    size = newest = 0
    for entry in scheduler.history:
        newest = entry.number
        if newest > number and size < PAGE_ROWS:
            page.append(entry.as_dict())
            size += 1 + len(entry.scheduled) + len(entry.blocked)
    return {"rounds": page, "newest": newest}


def arrivals_page(
    scheduler: RadixFlowScheduler, number: int, start: int = 0
) -> dict[str, Any]:
    """A page of the arrivals after round `number`, and what a replay must know.

    `next` is where the next page starts, `end` where the last one ends.
    """
    arrivals, manager = scheduler.arrivals, scheduler.kv_cache_manager
    page, after_page = arrivals.page(number, start)
    return {
        "policy": scheduler.policy_preset.as_dict(),
        "settings": _settings(scheduler),
        "blocks": manager.block_pool.num_gpu_blocks,
        "recurrent_groups": len(compat.recurrent_managers(manager)),
        "retention": manager.coordinator.retention_interval,
        "dropped": arrivals.dropped,
        "arrivals": [arrival.as_dict() for arrival in page],
        "next": after_page,
        "end": arrivals.end,
    }


def _settings(scheduler: RadixFlowScheduler) -> dict[str, Any]:
    return compat.snapshot_settings(
        scheduler.vllm_config, scheduler.block_size, scheduler.hash_block_size
    )
