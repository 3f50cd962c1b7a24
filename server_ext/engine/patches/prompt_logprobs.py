"""Score the given prompt tokens of a round together, and tell the likeliest.

vLLM's V2 model runner (0.32.0, 0.33.0) scores ``prompt_logprob_token_ids`` with one
``compute_logits`` call a request.  Each call reads the whole output matrix, so a round
of 256 branches pays for it 256 times.  The patch gathers the scored rows of a round and
makes one call for each 1,024 of them, which bounds memory as vLLM's own chunks do.

A request with RadixFlow's hints gets one more column: the log-probability of the
row's likeliest token.  A token is greedy where it reaches that value, ties included.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from server_ext.policy.hints import Hints, read_hints

if TYPE_CHECKING:
    import torch

__all__ = ["install", "installed"]

_HOME = "vllm.v1.worker.gpu.sample.prompt_logprob"
_MARK = "radixflow_scores_together"
_TOP = "radixflow_wants_top"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Consecutive scored rows of one request in this round.

    Attributes:
        request: vLLM's own record of the request.
        first: the first row's place in the round's hidden states.
        at: its place among the rows that the request scores.
        count: how many rows.
    """

    request: Any
    first: int
    at: int
    count: int

    @property
    def columns(self) -> tuple[int, bool]:
        """Token ids a row, and whether the likeliest token is wanted too."""
        return self.request.token_ids.shape[1], getattr(self.request, _TOP, False)


def install() -> None:
    """Patch the V2 runner's worker, where this process has loaded it.

    Importing it here would be too early on a CPU, where vLLM first replaces functions
    that the module takes by name.
    """
    home = sys.modules.get(_HOME)
    if home is None or installed():
        return
    worker = home.PromptLogprobsWorker
    native_add = worker.add_request

    @functools.wraps(native_add)
    def add_request(self: Any, req_id: str, req_idx: int, sampling_params: Any) -> None:
        native_add(self, req_id, req_idx, sampling_params)
        request = self.token_id_scores.get(req_id)
        if request is not None:
            hints = read_hints(sampling_params.extra_args)
            setattr(request, _TOP, isinstance(hints, Hints))

    setattr(_score_round, _MARK, True)
    worker.add_request = add_request
    worker.compute_prompt_token_id_logprobs = _score_round


def installed() -> bool:
    """Whether this process scores together, or has not loaded the V2 runner."""
    home = sys.modules.get(_HOME)
    return home is None or hasattr(
        home.PromptLogprobsWorker.compute_prompt_token_id_logprobs, _MARK
    )


def _score_round(
    self: Any,
    logits_fn: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    input_batch: Any,
    prompt_lens: Any,
) -> dict[str, torch.Tensor]:
    """Replace ``PromptLogprobsWorker.compute_prompt_token_id_logprobs``."""
    if not self.token_id_scores:
        return {}
    rows, ended = _plan(self.token_id_scores, input_batch, prompt_lens)
    rows.sort(key=lambda one: one.columns)
    logits_mode = self.logprobs_mode in ("raw_logits", "processed_logits")
    for chunk in _chunks(rows, sys.modules[_HOME].CHUNK_SIZE):
        _score_chunk(chunk, logits_fn, hidden_states, logits_mode=logits_mode)
    return {name: self.token_id_scores.pop(name).scores for name in ended}


def _plan(
    requests: dict[str, Any], input_batch: Any, prompt_lens: Any
) -> tuple[list[_Rows], list[str]]:
    """The rows that this round scores, and the requests whose prompt ends in it.

    Drops what vLLM's own method drops: requests that are past their prompt, that were
    resumed after a preemption, or whose cache hit took the first scored row.
    """
    rows, ended = [], []
    for index, name in enumerate(input_batch.req_ids):
        request = requests.get(name)
        if request is None:
            continue
        length = int(prompt_lens[input_batch.idx_mapping_np[index]])
        start = int(input_batch.num_computed_prefill_tokens_np[index])
        end = start + int(input_batch.num_scheduled_tokens[index])
        resumed = length < input_batch.prefill_len_np[index]
        swallowed = request.scores is None and start > request.start
        if start >= length or resumed or swallowed:
            del requests[name]
            continue
        # The last row of the prompt predicts the first generated token.
        low, high = max(request.start, start), min(end, length - 1)
        if low < high:
            place = int(input_batch.query_start_loc_np[index]) + low - start
            rows.append(_Rows(request, place, low - request.start, high - low))
        if end >= length:
            ended.append(name)
    return rows, ended


def _chunks(rows: Sequence[_Rows], most: int) -> Iterator[list[_Rows]]:
    """Cut `rows` into lists of at most `most` rows each."""
    chunk: list[_Rows] = []
    room = most
    for one in rows:
        done = 0
        while done < one.count:
            count = min(room, one.count - done)
            chunk.append(_Rows(one.request, one.first + done, one.at + done, count))
            done += count
            room -= count
            if not room:
                yield chunk
                chunk, room = [], most
    if chunk:
        yield chunk


def _score_chunk(
    chunk: Sequence[_Rows],
    logits_fn: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    *,
    logits_mode: bool,
) -> None:
    import torch

    logits_of_all = logits_fn(
        torch.cat([hidden_states[one.first : one.first + one.count] for one in chunk])
    )
    done = 0
    for (_, top), alike in groupby(chunk, key=lambda one: one.columns):
        members = list(alike)
        count = sum(one.count for one in members)
        logits = logits_of_all[done : done + count]
        done += count
        ids = torch.cat([_of(one, one.request.token_ids) for one in members])
        pad = torch.cat([_of(one, one.request.pad) for one in members])
        if top:
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
        scores = (
            logits.gather(-1, ids).float()
            if logits_mode
            else sys.modules[_HOME].compute_token_logprobs(logits, ids)
        )
        scores[:, : pad.shape[1]].masked_fill_(pad, float("-inf"))
        for one, part in zip(
            members, scores.split([one.count for one in members]), strict=True
        ):
            known = one.request.scores
            one.request.scores = part if known is None else torch.cat([known, part])


def _of(rows: _Rows, matrix: torch.Tensor) -> torch.Tensor:
    return matrix[rows.at : rows.at + rows.count]
