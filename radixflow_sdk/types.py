"""The frozen vocabulary: what an app gets back, and the unit that travels the pipe.

One unit goes through all rooms: `Branch` (planned) -> `BranchRequest` (sent) ->
`BranchEvent` (answered) -> `BranchResult` (kept) -> `Candidate` (ranked).

This room must not do anything: no I/O, no arithmetic beyond what a value says about
itself. Values are frozen, slotted and hashable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from radixflow_sdk.exceptions import InvalidInputError

Scoring: TypeAlias = Literal["likelihood", "label"]
Normalize: TypeAlias = Literal["sum", "mean", "char", "byte", "label"]
Document: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]]
Option: TypeAlias = str | Sequence[int]
Label: TypeAlias = str | int

MAX_BRANCHES = 4096
MAX_LABELS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """One token and its natural log-probability given everything before it."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScore:
    """A label, its token, and its natural log-probability after one candidate."""

    label: Label
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one branch: its whole prompt, and how the server came by them.

    Attributes:
        prompt_tokens: Document, question and option.
        cached_tokens: Of these, read from the prefix cache.
        computed_tokens: Of these, computed.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """Tokens of a whole group, over all requests that it took.

    Attributes:
        prompt_tokens: Sum over the finished branches.
        cached_tokens: Sum over the finished branches.
        computed_tokens: Sum over the finished branches and the producer.
        producer_tokens: Of these, the producer's; 0 when none was needed.
        rounds: Worker rounds from the group's first to its last; None where the server
            does not run the RadixFlow scheduler.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    producer_tokens: int
    rounds: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """One option with its score, known as soon as its branch is in.

    Attributes:
        index: Position in ``options``.
        text: The option as given; None for an option given as token ids.
        score: What ``scoring`` and ``normalize`` say, in nats (per unit). Higher is
            better.
        tokens: The option's tokens and their log-probabilities; with label scoring the
            one generated token.
        labels: With label scoring, each label's log-probability; else None.
        usage: Tokens of the branch. A duplicate shows its original's.
        duplicate_of: Index of the first equal option; None for that one itself.
    """

    index: int
    text: str | None
    score: float
    tokens: tuple[TokenScore, ...]
    labels: tuple[LabelScore, ...] | None
    usage: Usage
    duplicate_of: int | None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of `tokens`."""
        return tuple(token.token_id for token in self.tokens)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the server read from its prefix cache."""
        return self.usage.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(ScoredCandidate):
    """A candidate in a finished ranking.

    Attributes:
        probability: Softmax of the scores over all options (duplicates count each);
            sums to 1 over a result.
        tied: Another candidate has exactly this score.
    """

    probability: float
    tied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The answer to one question about one document.

    Attributes:
        candidates: Best first; equal scores in the order of ``options``.
        usage: Tokens of the group.
        group_id: The group, as the server's log and metrics name it.
        request_id: ``X-Request-ID`` of the group's last request.
        model: The model that scored.
        document_tokens: Tokens of the document.
        shared_tokens: Shared boundary: tokens of the prefix that all branches share.
        elapsed: Seconds from call to result, waiting for a free connection included.
    """

    candidates: tuple[Candidate, ...]
    usage: GroupUsage
    group_id: str
    request_id: str
    model: str
    document_tokens: int
    shared_tokens: int
    elapsed: float

    @property
    def best(self) -> Candidate:
        """The first of `candidates`."""
        return self.candidates[0]


# --- the unit that travels --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One distinct option as it will be sent.

    Attributes:
        index: Position in the plan; stays the same when a branch is sent again.
        content: Text with the template around it, or token ids.
    """

    index: int
    content: str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRequest:
    """One ``POST /v1/branches``: a group, or what is missing of it.

    Attributes:
        model: Served model name; None only until the client has asked for it.
        document: Text, token ids, or chat messages.
        question: Text between the document and every branch, verbatim.
        branches: What to score.
        scoring: What is read from the server.
        labels: With label scoring, the labels; else None.
        group_id: The same for every request of a group.
        cache_salt: Isolates the prefix cache.
        request_id: New for every request.
    """

    model: str | None
    document: str | tuple[int, ...] | tuple[Message, ...]
    question: str | None
    branches: tuple[Branch, ...]
    scoring: Scoring
    labels: tuple[Label, ...] | None
    group_id: str
    cache_salt: str | None
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A call, read and checked.

    Attributes:
        request: What to send, with each distinct option once.
        options: The options as given, token ids as tuples.
        members: For each branch, the positions of the options that it scores.
        normalize: How a branch becomes a score.

    Raises:
        InvalidInputError: The parts do not fit together.
    """

    request: BranchRequest
    options: tuple[str | tuple[int, ...], ...]
    members: tuple[tuple[int, ...], ...]
    normalize: Normalize

    def __post_init__(self) -> None:
        request = self.request
        if not self.options:
            raise InvalidInputError(
                "options is empty; give at least one option.",
                field="options",
                value=self.options,
            )
        if len(self.options) > MAX_BRANCHES:
            raise InvalidInputError(
                f"options has {len(self.options)} entries; a group takes at most "
                f"{MAX_BRANCHES}, so split it.",
                field="options",
                value=len(self.options),
            )
        if not request.document and not request.question:
            raise InvalidInputError(
                "document and question are both empty; give at least one of them.",
                field="document",
                value=request.document,
            )
        self._check_labels()
        self._check_normalize()

    def _check_labels(self) -> None:
        scoring, labels = self.request.scoring, self.request.labels
        if scoring == "label" and not labels:
            raise InvalidInputError(
                "labels is empty; scoring='label' needs labels, in the call or in the "
                "template.",
                field="labels",
                value=labels,
            )
        if scoring == "likelihood" and labels is not None:
            raise InvalidInputError(
                f"labels is {labels!r}; scoring='likelihood' reads none, so leave it "
                "out or use scoring='label'.",
                field="labels",
                value=labels,
            )

    def _check_normalize(self) -> None:
        scoring, labels = self.request.scoring, self.request.labels
        fits = ("sum", "label") if labels else ("sum", "mean", "char", "byte")
        if self.normalize not in fits:
            raise InvalidInputError(
                f"normalize is {self.normalize!r}; with scoring={scoring!r} use one of "
                f"{', '.join(fits)}.",
                field="normalize",
                value=self.normalize,
            )
        if self.normalize == "label" and labels is not None and len(labels) < 2:
            raise InvalidInputError(
                f"labels is {labels!r}; normalize='label' needs at least two.",
                field="labels",
                value=labels,
            )
        if self.normalize in ("char", "byte"):
            for position, option in enumerate(self.options):
                if not isinstance(option, str):
                    raise InvalidInputError(
                        f"options[{position}] is token ids; normalize="
                        f"{self.normalize!r} needs its text, so use 'sum' or 'mean'.",
                        field=f"options[{position}]",
                        value=option,
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted:
    """The server took the group."""

    group_id: str
    request_id: str
    model: str
    document_tokens: int
    shared_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """A branch is in: its tokens, its labels, its cost."""

    index: int
    tokens: tuple[TokenScore, ...]
    labels: tuple[LabelScore, ...] | None
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFailed:
    """A branch failed on the server, which says whether sending it again can help."""

    index: int
    request_id: str
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCompleted:
    """Every branch has been answered."""

    usage: GroupUsage


BranchEvent: TypeAlias = GroupStarted | BranchResult | BranchFailed | GroupCompleted
