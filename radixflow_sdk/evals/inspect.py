"""A scorer for Inspect: the likelihood of each choice, and a solver that asks nothing.

    Task(dataset, solver=no_generation(), scorer=choice_likelihood())

Inspect's own model is not asked. The scorer sends a sample's input and choices to a
RadixFlow server as one group, and the log viewer shows every choice's score.
"""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_uppercase

from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    Score,
    Scorer,
    Target,
    accuracy,
    scorer,
    stderr,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._requests import Normalize

__all__ = ["choice_likelihood", "no_generation"]


def _prompt(text: str) -> str:
    return f"Question: {text}\nAnswer:"


@scorer(metrics=[accuracy(), stderr()])  # type: ignore[untyped-decorator, unused-ignore]
def choice_likelihood(
    *,
    base_url: str | None = None,
    model: str | None = None,
    normalize: Normalize = "char",
    prompt: Callable[[str], str] = _prompt,
) -> Scorer:
    """Pick the likeliest choice of a multiple-choice sample.

    Args:
        base_url: The server; None: the environment's ``RADIXFLOW_BASE_URL``.
        model: A served model; None: the server's first.
        normalize: What is compared, see `RadixFlowClient.score_candidates`.
        prompt: From a sample's input to the text before a choice.
    """

    async def score(state: TaskState, target: Target) -> Score:
        # A client for each sample: Inspect says no scorer when its run ends.
        async with RadixFlowClient(base_url, model=model) as client:
            result = await client.score_candidates(
                prompt(state.input_text),
                [choice.value for choice in state.choices],
                normalize=normalize,
            )
        letter = ascii_uppercase[result.best.index]
        ranked = (
            f"{ascii_uppercase[own.index]}: {own.probability:.3f} ({own.score:.3f})"
            for own in result.candidates
        )
        return Score(
            value=CORRECT if letter in target.text else INCORRECT,
            answer=letter,
            explanation="\n".join(ranked),
            metadata={
                ascii_uppercase[own.index]: dict(own.scores)
                for own in result.candidates
            },
        )

    return score


@solver  # type: ignore[untyped-decorator, unused-ignore]
def no_generation() -> Solver:
    """Leave a sample as it is: nothing is generated, the scorer asks on its own."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return state

    return solve
