"""What an app asks: requests as values, and the words that their fields take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

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

    The fields are the arguments of `RadixFlowClient.score_candidates`. They are read
    and checked when the request is run.

    Attributes:
        document: Text, token ids, a list of parts of either, or chat messages.
        options: 1 to 4,096 texts or lists of token ids.
        question: Asked after the document.
        scoring: What is read from the model.
        normalize: How log-probabilities become a score.
        template: The words around question and option.
        labels: For label scoring, in place of the template's.
        unconditional: What ``pmi`` compares with: a context without the document.
        timeout: Seconds for the group's own work, in place of the client's.
        group_id: An id for log and metrics.
        cache_salt: In place of the client's.
        partial: Whether a group of which only some branches are in is a
            `PartialGroupError` or a result with `ScoreResult.failures`.
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


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One document and branches that go on: `ScoreRequest` for generated text.

    The fields are the arguments of `RadixFlowClient.generate_branches`. They are read
    and checked when the request is run.

    Attributes:
        document: Text, token ids, a list of parts of either, or chat messages.
        branches: 1 to 4,096 texts or lists of token ids.
        max_tokens: The most tokens to generate after each branch.
        temperature: 0 takes the likeliest token each time.
        top_p: Sample from the likeliest tokens of that much probability.
        stop: Texts that end a branch.
        seed: For sampling that can be repeated.
        timeout: Seconds for the group's own work, in place of the client's.
        group_id: An id for log and metrics.
        cache_salt: In place of the client's.
        partial: Whether a group of which only some branches are in is a
            `PartialGroupError` or a result with `GenerationResult.failures`.
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
