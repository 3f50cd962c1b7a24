"""Requests as values, and the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from radixflow_sdk._values import as_plain

if TYPE_CHECKING:
    from radixflow_sdk._prompt import Template

Scoring: TypeAlias = Literal["likelihood", "label"]
Normalize: TypeAlias = Literal["sum", "mean", "char", "byte", "pmi", "label"]
RouteChoice: TypeAlias = Literal["auto", "branches", "trie", "echo"]
Partial: TypeAlias = Literal["raise", "return"]
RerankMode: TypeAlias = Literal["label", "query_likelihood"]
RerankTemplate: TypeAlias = Literal["auto", "plain", "qwen3-reranker"]
Document: TypeAlias = (
    str
    | Sequence[int]
    | Sequence[str]
    | Sequence[Sequence[int]]
    | Sequence[Mapping[str, str]]
)
Option: TypeAlias = str | Sequence[int]
Label: TypeAlias = str | int
MAX_BRANCHES = 4096
MAX_LABELS = 64
MAX_STOPS = 16
MAX_PARTS = 62


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One document and its options: a call of `score_candidates` as a value.

    The fields are the arguments of `RadixFlowClient.score_candidates`, and are checked
    when the request runs.

    Attributes:
        document: Text, token ids, a list of parts of either, or chat messages.
        options: 1 to 4,096 texts or lists of token ids.
        question: Text after the document.
        scoring: What is read from the model.
        normalize: How log-probabilities become a score.
        template: The text around question and option.
        labels: For label scoring; replace the template's.
        unconditional: For ``pmi``: the context of an option without the document.
        timeout: Seconds for the group, without the wait for a slot; replaces the
            client's.
        group_id: An id for log and metrics.
        cache_salt: Replaces the client's.
        partial: Whether a group with failed branches raises a `PartialGroupError` or
            returns a result with `ScoreResult.failures`.
    """

    document: Document
    options: Sequence[Option]
    _: KW_ONLY
    question: str | None = None
    scoring: Scoring = "likelihood"
    normalize: Normalize = "sum"
    template: Template | None = None
    labels: Sequence[Label] | None = None
    unconditional: str | Sequence[int] | None = None
    timeout: float | None = None
    group_id: str | None = None
    cache_salt: str | None = None
    partial: Partial = "raise"

    def __post_init__(self) -> None:
        # Read once: a generator would be empty when the request is sent again.
        for name in ("document", "options", "labels", "unconditional"):
            object.__setattr__(self, name, as_plain(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One document and the branches to generate text after.

    The fields are the arguments of `RadixFlowClient.generate_branches`, and are checked
    when the request runs.

    Attributes:
        document: Text, token ids, a list of parts of either, or chat messages.
        branches: 1 to 4,096 texts or lists of token ids.
        max_tokens: Maximum number of tokens to generate after each branch.
        temperature: 0 selects the most likely token.
        top_p: Sample from the most likely tokens with that total probability.
        stop: Texts that end a branch.
        seed: For reproducible sampling.
        timeout: Seconds for the group, without the wait for a slot; replaces the
            client's.
        group_id: An id for log and metrics.
        cache_salt: Replaces the client's.
        partial: Whether a group with failed branches raises a `PartialGroupError` or
            returns a result with `GenerationResult.failures`.
    """

    document: Document
    branches: Sequence[Option]
    _: KW_ONLY
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: Sequence[str] = ()
    seed: int | None = None
    timeout: float | None = None
    group_id: str | None = None
    cache_salt: str | None = None
    partial: Partial = "raise"

    def __post_init__(self) -> None:
        for name in ("document", "branches", "stop", "max_tokens", "seed"):
            object.__setattr__(self, name, as_plain(getattr(self, name)))
