"""A worker without a model that remembers what every block holds.

For each step it does what vLLM's runner does to the cache: zero new blocks, copy
blocks, move running states across block boundaries, write keys, values and states.
Instead of numbers it writes *digests*: the digest of a prefix stands for everything
that a layer could have computed from it.  A request must find, in its blocks, exactly
the digests of its own prefix; anything else is a `WrongState`.

The memory is one, as in vLLM: an attention layer and a recurrent layer share a block's
bytes, so a block that held keys and values holds no state, and the other way round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers.mamba.checkpoint import (
    compute_mamba_prefill_checkpoints,
)
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import Request

NOTHING = 0
"""Digest of memory that no step has written."""


class WrongState(AssertionError):
    """A request would read a state that is not the state of its own prefix."""


def all_at_once(copies: Sequence[Any]) -> list[Sequence[Any]]:
    """vLLM's own way to run the copies of a step."""
    return [copies] if copies else []


@dataclass
class _Cell:
    """One physical block: keys and values by slot, or one recurrent state."""

    slots: np.ndarray | None = None
    state: int = NOTHING


@dataclass
class _Tenant:
    """A request as the worker knows it."""

    tokens: list[int]
    chain: list[int]
    prompt: int
    blocks: list[list[int]]
    computed: int
    scored_from: int
    wants_rows: bool
    state_column: int | None = None
    rows: np.ndarray = field(default_factory=lambda: np.empty(0))

    def grow(self, token: int) -> None:
        self.tokens.append(token)
        self.chain.append(hash((self.chain[-1], token)))


def _chain(tokens: Sequence[int], request: Request) -> list[int]:
    adapter = request.lora_request.lora_name if request.lora_request else None
    digest = hash(("prefix of", request.cache_salt, adapter))
    chain = [digest]
    for token in tokens:
        digest = hash((digest, token))
        chain.append(digest)
    return chain


@dataclass
class ShadowWorker:
    """Executes `SchedulerOutput`s on digests.

    Attributes:
        block_size: tokens of a block.
        unit: tokens of a prefix-cache hash.
        recurrent: for each cache group, whether it is recurrent.
        waves: how the copies of one step are cut into groups that run at once.
        caps_hits: whether a hit must leave the first scored row to be computed.
        checkpoint_alignment: the layers save a checkpoint inside a prompt's last chunk
            (Mamba2, for example) at multiples of so many tokens; None: they save none.
        exported: checkpoints saved inside chunks.
        drops_ended: drop what a request wrote in rounds that were in flight when it
            ended or was preempted (vllm-project/vllm PR #56525).
        dropped: writes that were dropped.
    """

    block_size: int
    unit: int
    recurrent: Sequence[bool]
    waves: Callable[[Sequence[Any]], Sequence[Sequence[Any]]]
    caps_hits: bool = True
    checkpoint_alignment: int | None = None
    steps: int = 0
    exported: int = 0
    drops_ended: bool = False
    dropped: int = 0
    _in_flight: deque[dict[str, set[int]]] = field(default_factory=deque)
    _cells: dict[int, _Cell] = field(default_factory=dict)
    _tenants: dict[str, _Tenant] = field(default_factory=dict)
    _requests: dict[str, Request] = field(default_factory=dict)
    _meaning: dict[bytes, tuple[int, np.ndarray]] = field(default_factory=dict)
    _noted: dict[str, int] = field(default_factory=dict)
    _written: set[int] = field(default_factory=set)
    _audited: set[tuple[bytes, int]] = field(default_factory=set)

    # -- the front end tells what hashes mean ---------------

    def learn(self, request: Request) -> None:
        """Note the request, so that its prefix-cache keys can be audited."""
        self._requests[request.request_id] = request
        self._noted[request.request_id] = 0
        self._note_hashes(request)

    def _note_hashes(self, request: Request) -> None:
        noted = self._noted[request.request_id]
        keys = request.block_hashes
        if len(keys) == noted:
            return
        self._noted[request.request_id] = len(keys)
        chain = np.array(_chain(request.all_token_ids, request))
        for index in range(noted, len(keys)):
            key = bytes(keys[index])
            self._meaning.setdefault(key, ((index + 1) * self.unit, chain))

    # -- one step ---------------

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step.

        Raises:
            WrongState: a request reads what is not its own prefix's.
        """
        self.steps += 1
        if self.drops_ended:
            self._drop({*output.finished_req_ids, *(output.preempted_req_ids or ())})
        self._in_flight.append({})
        for request_id in output.finished_req_ids:
            self._tenants.pop(request_id, None)
        for request_id in output.preempted_req_ids or ():
            if request_id in self._tenants:
                self._tenants[request_id].state_column = None
        for block in output.new_block_ids_to_zero or ():
            self._write(block, _Cell())
        for wave in self.waves(output.kv_cache_block_copies or ()):
            self._copy(wave)
        self._take_in(output)
        scheduled = output.num_scheduled_tokens
        self._move_states(scheduled)
        self._run_layers(scheduled)
        return self._answer(scheduled)

    def processed(self) -> None:
        """The scheduler has the output of the oldest round."""
        self._in_flight.popleft()

    def _drop(self, ended: set[str]) -> None:
        """Leave garbage where requests wrote in rounds that are in flight."""
        for writes in self._in_flight:
            for request_id in ended & writes.keys():
                for block in writes.pop(request_id):
                    self._write(block, _Cell())
                    self.dropped += 1

    def _note_write(self, request_id: str, block: int) -> None:
        self._in_flight[-1].setdefault(request_id, set()).add(block)

    def _copy(self, wave: Sequence[Any]) -> None:
        """Whole blocks, all read before any is written."""
        read = [(target, self._cells.get(source, _Cell())) for source, target in wave]
        for target, cell in read:
            slots = None if cell.slots is None else cell.slots.copy()
            self._write(target, _Cell(slots, cell.state))

    def _take_in(self, output: SchedulerOutput) -> None:
        for new in output.scheduled_new_reqs:
            self._admit(new)
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            tenant = self._tenants[request_id]
            tenant.computed = cached.num_computed_tokens[index]
            blocks = cached.new_block_ids[index]
            if request_id in cached.resumed_req_ids:
                assert blocks is not None
                tenant.blocks = [list(group) for group in blocks]
                tenant.state_column = None
                self._check_scored_row(request_id, tenant)
            elif blocks is not None:
                for known, more in zip(tenant.blocks, blocks, strict=True):
                    known.extend(more)
            known_outputs = len(tenant.tokens) - tenant.prompt
            surplus = known_outputs - cached.num_output_tokens[index]
            if surplus > 0:
                del tenant.tokens[-surplus:]
                del tenant.chain[-surplus:]

    def _admit(self, new: Any) -> None:
        request = self._requests[new.req_id]
        prompt = list(new.prompt_token_ids)
        extra = request.sampling_params.extra_args or {}
        wants_rows = request.sampling_params.prompt_logprobs is not None
        # vLLM's second runner sends a resumed request as a new one.
        every = list(getattr(new, "prefill_token_ids", None) or prompt)
        tenant = self._tenants[new.req_id] = _Tenant(
            tokens=every,
            chain=_chain(every, request),
            prompt=len(prompt),
            blocks=[list(group) for group in new.block_ids],
            computed=new.num_computed_tokens,
            scored_from=extra.get("radixflow_scored_from", 0),
            wants_rows=wants_rows,
            rows=np.full(max(len(prompt) - 1, 0), np.nan),
        )
        self._check_scored_row(new.req_id, tenant)

    def _check_scored_row(self, request_id: str, tenant: _Tenant) -> None:
        scored_from = tenant.scored_from
        # An honest client scores a token of its prompt; others get what they ask for.
        if not (
            self.caps_hits and tenant.wants_rows and 0 < scored_from <= tenant.prompt
        ):
            return
        if tenant.computed > scored_from - 1:
            raise WrongState(
                f"{request_id}: a hit of {tenant.computed} tokens swallows the row of "
                f"its first scored token {scored_from}"
            )

    def _move_states(self, scheduled: dict[str, int]) -> None:
        """Copy each running state into the block column that this step writes."""
        moves: list[tuple[str, int, int]] = []
        for request_id, count in scheduled.items():
            tenant = self._tenants[request_id]
            before = tenant.state_column
            if before is None:
                before = (tenant.computed - 1) // self.block_size
            after = -(-(tenant.computed + count) // self.block_size) - 1
            tenant.state_column = after
            if before in (-1, after):
                continue
            for group in self._recurrent_groups():
                blocks = tenant.blocks[group]
                moves.append((request_id, blocks[before], blocks[after]))
        targets = {target for _, _, target in moves}
        for request_id, source, _ in moves:
            if source in targets:
                raise WrongState(f"{request_id}: block {source} is moved and written")
        read = [(target, self._state(source)) for _, source, target in moves]
        for target, state in read:
            self._write(target, _Cell(None, state))

    def _run_layers(self, scheduled: dict[str, int]) -> None:
        attention = [i for i, recurrent in enumerate(self.recurrent) if not recurrent]
        for group in self._recurrent_groups():
            owners: dict[int, str] = {}
            for request_id, count in scheduled.items():
                self._run_recurrent(request_id, count, group, owners)
        for group in attention:
            for request_id, count in scheduled.items():
                self._write_keys(request_id, count, group)
            for request_id, count in scheduled.items():
                self._read_keys(request_id, count, group)

    def _run_recurrent(
        self, request_id: str, count: int, group: int, owners: dict[int, str]
    ) -> None:
        tenant = self._tenants[request_id]
        end = tenant.computed + count
        block = tenant.blocks[group][-(-end // self.block_size) - 1]
        if block == 0:
            raise WrongState(f"{request_id} writes its state into the null block")
        if owners.setdefault(block, request_id) != request_id:
            raise WrongState(f"{request_id} and {owners[block]} both write {block}")
        if tenant.computed and self._state(block) != tenant.chain[tenant.computed]:
            raise WrongState(
                f"{request_id}, group {group}: block {block} does not hold the state "
                f"after its {tenant.computed} tokens ({self._describe(block)})"
            )
        self._write(block, _Cell(None, self._digest(tenant, end)))
        self._note_write(request_id, block)
        if self.checkpoint_alignment is not None:
            self._export_checkpoint(tenant, count, end, group)

    def _export_checkpoint(
        self, tenant: _Tenant, count: int, end: int, group: int
    ) -> None:
        """Save the state that a chunk passes, where vLLM's layers do (its own rule)."""
        [offset], [column] = compute_mamba_prefill_checkpoints(
            [end],
            [count],
            hash_block_size=self.unit,
            mamba_block_size=self.block_size,
            checkpoint_alignment=self.checkpoint_alignment,
            drop_eagle_block=False,
            cache_hit_alignment_tokens=self.unit,
        )
        if column >= 0 and (block := tenant.blocks[group][column]):
            self._write(block, _Cell(None, tenant.chain[tenant.computed + offset]))
            self.exported += 1

    def _write_keys(self, request_id: str, count: int, group: int) -> None:
        tenant = self._tenants[request_id]
        start, end = tenant.computed, tenant.computed + count
        self._digest(tenant, end)
        chain = np.array(tenant.chain[start + 1 : end + 1], dtype=np.int64)
        for column in range(start // self.block_size, -(-end // self.block_size)):
            low = max(start, column * self.block_size)
            high = min(end, (column + 1) * self.block_size)
            block = tenant.blocks[group][column]
            if block == 0:
                raise WrongState(f"{request_id} writes keys into the null block")
            cell = self._cells.get(block, _Cell())
            self._write(block, cell)
            if cell.slots is None:
                cell.slots = np.zeros(self.block_size, dtype=np.int64)
            cell.state = NOTHING
            offset = column * self.block_size
            cell.slots[low - offset : high - offset] = chain[low - start : high - start]

    def _read_keys(self, request_id: str, count: int, group: int) -> None:
        tenant = self._tenants[request_id]
        end = tenant.computed + count
        chain = np.array(tenant.chain[1 : end + 1], dtype=np.int64)
        for column in range(-(-end // self.block_size)):
            wanted = chain[column * self.block_size : (column + 1) * self.block_size]
            slots = self._cells.get(tenant.blocks[group][column], _Cell()).slots
            found = None if slots is None else slots[: len(wanted)]
            if found is None or not np.array_equal(found, wanted):
                raise WrongState(
                    f"{request_id}: block {tenant.blocks[group][column]} (column "
                    f"{column} of group {group}) does not hold its keys and values up "
                    f"to token {column * self.block_size + len(wanted)}"
                )

    def _answer(self, scheduled: dict[str, int]) -> ModelRunnerOutput:
        ids = list(scheduled)
        sampled: list[list[int]] = []
        rows: dict[str, LogprobsTensors | None] = {}
        for request_id, count in scheduled.items():
            tenant = self._tenants[request_id]
            end = tenant.computed + count
            # Row p predicts token p + 1; memory as it was found stays NaN.
            tenant.rows[tenant.computed : end] = np.arange(
                tenant.computed, min(end, len(tenant.rows))
            )
            if tenant.wants_rows and tenant.computed < tenant.prompt <= end:
                rows[request_id] = _tensors(tenant.rows)
            if end < len(tenant.tokens):
                sampled.append([])
            else:
                token = 5 + tenant.chain[end] % 4000
                tenant.grow(token)
                sampled.append([token])
            tenant.computed = end
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict=rows,
        )

    # -- memory ---------------

    def _recurrent_groups(self) -> list[int]:
        return [i for i, recurrent in enumerate(self.recurrent) if recurrent]

    def _write(self, block: int, cell: _Cell) -> None:
        self._cells[block] = cell
        self._written.add(block)

    def _state(self, block: int) -> int:
        cell = self._cells.get(block)
        return NOTHING if cell is None else cell.state

    def _digest(self, tenant: _Tenant, end: int) -> int:
        if end >= len(tenant.chain):
            raise WrongState(
                f"{end} tokens are scheduled, {len(tenant.chain) - 1} known"
            )
        return tenant.chain[end]

    def _describe(self, block: int) -> str:
        state = self._state(block)
        if state == NOTHING:
            return "it holds no state"
        for request_id, tenant in self._tenants.items():
            if state in tenant.chain:
                return (
                    f"it holds the state of {request_id} at {tenant.chain.index(state)}"
                )
        return "it holds a state of a request that is gone"

    # -- what the prefix cache promises ---------------

    def audit(self, pool: Any) -> None:
        """Check every key in the prefix cache against what its block holds.

        Raises:
            WrongState: a key promises what its block does not hold.
        """
        for request_id in self._tenants:
            self._note_hashes(self._requests[request_id])
        audited: set[tuple[bytes, int]] = set()
        for key, entry in pool.cached_block_hash_to_block._cache.items():
            blocks = entry.values() if isinstance(entry, dict) else (entry,)
            for number in (block.block_id for block in blocks):
                audited.add((key, number))
                if number in self._written or (key, number) not in self._audited:
                    self._audit_block(key, number)
        self._audited = audited
        self._written.clear()

    def _audit_block(self, key: Any, block: int) -> None:
        group = get_group_id(key)
        length, chain = self._meaning[bytes(get_block_hash(key))]
        if self.recurrent[group]:
            if self._state(block) != chain[length]:
                raise WrongState(
                    f"the cache promises the state after {length} tokens in block "
                    f"{block} of group {group}; {self._describe(block)}"
                )
            return
        start = (length - 1) // self.block_size * self.block_size
        wanted = chain[start + 1 : length + 1]
        slots = self._cells.get(block, _Cell()).slots
        if slots is None or not np.array_equal(slots[: len(wanted)], wanted):
            raise WrongState(
                f"the cache promises keys and values of tokens {start} to {length} in "
                f"block {block} of group {group}; it does not hold them"
            )


def _tensors(rows: np.ndarray) -> LogprobsTensors:
    column = torch.from_numpy(rows.copy()).unsqueeze(1)
    return LogprobsTensors(
        torch.zeros(column.shape, dtype=torch.int64),
        column,
        torch.zeros(len(rows), dtype=torch.int64),
    )
