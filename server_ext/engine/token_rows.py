"""Patch for vLLM PR #51789: keep top-k logprobs beside ``logprob_token_ids``.

If one request of a batch reads given tokens (``logprob_token_ids``, our labels) and
another the top k (``logprobs`` of a chat), the V1 sampler of vLLM 0.32.0 and 0.33.0
gives every request rows of the first kind.  The chat's row is padded with token 0 at
minus infinity, so its top-k log-probabilities are lost.  The patch fills the rows of
requests without given tokens from the sampler's own `gather_logprobs`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["install", "installed"]

_MARK = "radixflow_keeps_likeliest"


def install() -> None:
    """Patch the sampler in this process; a second call changes nothing."""
    from vllm.v1.sample.sampler import Sampler

    if hasattr(Sampler.forward, _MARK):
        return
    native_forward = Sampler.forward
    native_gather = Sampler.gather_specific_token_logprobs

    @functools.wraps(native_forward)
    def forward(
        self: Any, logits: Any, sampling_metadata: Any, *rest: Any, **named: Any
    ) -> Any:
        self.radixflow_likeliest = sampling_metadata.max_num_logprobs
        return native_forward(self, logits, sampling_metadata, *rest, **named)

    @functools.wraps(native_gather)
    def gather(
        self: Any,
        logprobs: torch.Tensor,
        logprob_token_ids: dict[int, list[int]],
        sampled: torch.Tensor,
    ) -> Any:
        rows = native_gather(self, logprobs, logprob_token_ids, sampled)
        likeliest = getattr(self, "radixflow_likeliest", None)
        others = [r for r in range(logprobs.shape[0]) if r not in logprob_token_ids]
        if rows is None or not others or not likeliest or likeliest < 0:
            return rows
        own = self.gather_logprobs(
            logprobs[others], likeliest, token_ids=sampled[others]
        )
        return _filled(rows, others, own)

    setattr(forward, _MARK, True)
    Sampler.forward = forward
    Sampler.gather_specific_token_logprobs = gather


def installed() -> bool:
    """Whether this process keeps the top-k rows."""
    from vllm.v1.sample.sampler import Sampler

    return hasattr(Sampler.forward, _MARK)


def _filled(rows: Any, others: list[int], own: Any) -> Any:
    """`rows` with `own` in the rows `others`, all of them widened where needed."""
    from torch.nn.functional import pad

    width = own.logprobs.shape[1]
    missing = max(0, width - rows.logprobs.shape[1])
    token_ids = pad(rows.logprob_token_ids, (0, missing))
    logprobs = pad(rows.logprobs, (0, missing), value=float("-inf"))
    token_ids[others, :width] = own.logprob_token_ids.to(token_ids.dtype)
    logprobs[others, :width] = own.logprobs
    return rows._replace(logprob_token_ids=token_ids, logprobs=logprobs)
