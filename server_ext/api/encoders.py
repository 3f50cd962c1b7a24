"""Encode requests off the event loop, fairly.

A request is encoded in slices of a few milliseconds.  After each it returns to the end
of its queue, so that one with thousands of branches does not delay others; it stops if
its client has disconnected.  Short requests have an encoder of their own: a
single long context cannot be cut into slices.
"""

from __future__ import annotations

import copy
import time
from functools import cached_property
from typing import Any

import anyio
import anyio.to_thread

from server_ext.api.context import WINDOWS, Tokenizer
from server_ext.api.protocol import BranchesRequest
from server_ext.api.tokens import GroupPrompts, Steps, prompt_steps

__all__ = ["Encoders"]

SLICE_SECONDS = 0.02
SHORT_CHARACTERS = 32_768
"""Most characters, windows included, that make a request a short one."""


class Encoders:
    """At most two threads, each with a tokenizer that no other thread uses.

    Args:
        tokenizer: the model's tokenizer; long requests use a copy of it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._short = anyio.CapacityLimiter(1)
        self._long = anyio.CapacityLimiter(1)

    @cached_property
    def _copy(self) -> Any:
        return copy.deepcopy(self._tokenizer)

    async def prompts(
        self, request: BranchesRequest, *, vocabulary: int, limit: int
    ) -> GroupPrompts:
        """Every prompt of a request; see `prompt_steps`."""
        is_short = _characters(request) <= SHORT_CHARACTERS
        limiter = self._short if is_short else self._long
        steps: Steps | None = None

        def advance() -> GroupPrompts | None:
            nonlocal steps
            if steps is None:
                tokenizer = self._tokenizer if is_short else self._copy
                steps = prompt_steps(
                    request, tokenizer, vocabulary=vocabulary, limit=limit
                )
            end = time.monotonic() + SLICE_SECONDS
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    prompts: GroupPrompts = stop.value
                    return prompts
                if time.monotonic() >= end:
                    return None

        while True:
            prompts = await anyio.to_thread.run_sync(advance, limiter=limiter)
            if prompts is not None:
                return prompts


def _characters(request: BranchesRequest) -> int:
    """About how many characters are encoded for a request."""
    document = request.document
    messages = document.messages or ()
    context = len(document.text or "") + len(request.question or "")
    context += sum(len(message.content) for message in messages)
    window = min(context, WINDOWS[0])
    branches = sum(window + len(branch.text or "") for branch in request.branches)
    labels = sum(isinstance(label, str) for label in request.labels or ())
    return context + branches * (1 + labels)
