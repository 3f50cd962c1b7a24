"""Which rows of a prompt leave the engine: those that are scored, and no others."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.v1.outputs import LogprobsTensors

from server_ext.policy.hints import Hints

__all__ = ["trim_rows"]


def trim_rows(
    rows: dict[str, LogprobsTensors | None], hints: Mapping[str, Hints]
) -> None:
    """Cut each prompt's rows, in place, down to those from its first scored token on.

    The rows of cached tokens were never computed: they are memory as it was found.

    Args:
        rows: what the model runner returns, by request id.
        hints: hints by request id; only requests that ask for it are cut.
    """
    for request_id, tensors in rows.items():
        asked = hints.get(request_id)
        if asked is not None and asked.trim_rows and tensors is not None:
            first = max(asked.scored_from - 1, 0)
            rows[request_id] = LogprobsTensors(
                tensors.logprob_token_ids[first:],
                tensors.logprobs[first:],
                tensors.selected_token_ranks[first:],
            )
