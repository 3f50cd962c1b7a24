"""Values that pass through the client, from a checked call to the server and back.

`Branch` (planned) -> `GroupRequest` (sent) -> `BranchEvent` (received) ->
`BranchResult` (kept) -> `Candidate` (ranked). Values are frozen and slotted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from radixflow_sdk._events import OnResponse
from radixflow_sdk._requests import MAX_BRANCHES, Label, Normalize, Scoring
from radixflow_sdk._results import GroupUsage, LabelScore, Route, TokenScore, Usage
from radixflow_sdk._validate import refuse
from radixflow_sdk.exceptions import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One distinct option as it is sent.

    Attributes:
        index: Position in the plan; stays the same when a branch is sent again.
        content: Text with the template around it, or token ids.
    """

    index: int
    content: str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How text is generated; the fields are those of ``generate_branches``."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """One request: a group, or its missing branches.

    Attributes:
        model: Served model name; None only until the client has requested it.
        document: Text, token ids, or chat messages.
        question: Text between the document and every branch, verbatim.
        branches: The branches to score, or to generate after.
        scoring: What is read from the server.
        labels: With label scoring, the labels; else None.
        group_id: The same for every request of a group.
        cache_salt: Isolates the prefix cache.
        request_id: New for every request.
        sampling: How text is generated; None: branches are scored.
        session_id: The same for every request about one document, see `_hints`.
        boundaries: Likely branch points with documents of other groups: the end of each
            part of the document but the last, in characters or tokens.
        extra_headers: Added to the headers.
        extra_body: Added to the body.
        on_response: Called with every HTTP answer.
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
    sampling: Sampling | None = None
    session_id: str = ""
    boundaries: tuple[int, ...] = ()
    # A header may be a secret.
    extra_headers: Mapping[str, str] = field(
        default_factory=dict, hash=False, repr=False
    )
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    on_response: OnResponse | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked call.

    Attributes:
        request: The request, with each distinct option once.
        options: The options as given, token ids as tuples.
        members: For each branch, the positions of the options that it scores.
        normalize: How log-probabilities become a score.
        unconditional: Text or token ids after which every option is also scored, in a
            group of its own.

    Raises:
        InvalidInputError: The parts do not fit together.
    """

    request: GroupRequest
    options: tuple[str | tuple[int, ...], ...]
    members: tuple[tuple[int, ...], ...]
    normalize: Normalize
    unconditional: str | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        request, count = self.request, len(self.options)
        named = "options" if request.sampling is None else "branches"
        if not 1 <= count <= MAX_BRANCHES:
            problem = (
                f"has {count} entries; a group takes at most {MAX_BRANCHES}, so split "
                "it"
                if count
                else "is empty; give at least one"
            )
            raise InvalidInputError(
                f"{named} {problem}.", field=named, value=self.options or ()
            )
        if not request.document and not request.question:
            raise InvalidInputError(
                "document and question are both empty; give at least one of them.",
                field="document",
                value=request.document,
            )
        self._check_labels()
        self._check_normalize()
        self._check_unconditional()

    def _check_labels(self) -> None:
        scoring, labels = self.request.scoring, self.request.labels
        if scoring == "label" and not labels:
            raise InvalidInputError(
                "labels is empty; scoring='label' needs labels, in the call or in the "
                "template.",
                field="labels",
                value=labels,
                mentions=("scoring",),
            )
        if scoring == "likelihood" and labels is not None:
            raise refuse(
                "labels",
                labels,
                "scoring='likelihood' reads none, so leave it out or use "
                "scoring='label'",
                mentions=("scoring",),
            )

    def _check_normalize(self) -> None:
        scoring, labels = self.request.scoring, self.request.labels
        choices = ("sum", "label") if labels else ("sum", "mean", "char", "byte", "pmi")
        if self.normalize not in choices:
            raise refuse(
                "normalize",
                self.normalize,
                f"with scoring={scoring!r} use one of {', '.join(choices)}",
                mentions=("scoring",),
            )
        if self.normalize == "label" and labels is not None and len(labels) < 2:
            raise refuse(
                "labels",
                labels,
                "normalize='label' needs at least two",
                mentions=("normalize",),
            )
        if self.normalize in ("char", "byte"):
            for position, option in enumerate(self.options):
                if not isinstance(option, str):
                    raise InvalidInputError(
                        f"options[{position}] is token ids; normalize="
                        f"{self.normalize!r} needs its text, so use 'sum' or 'mean'.",
                        field=f"options[{position}]",
                        value=option,
                        mentions=("normalize",),
                    )

    def _check_unconditional(self) -> None:
        if self.normalize == "pmi" and self.unconditional is None:
            raise refuse(
                "unconditional",
                None,
                "normalize='pmi' compares with it, so give the context that an option "
                "has without the document, such as unconditional='Answer:'",
                mentions=("normalize", "unconditional"),
            )
        if self.request.scoring == "label" and self.unconditional is not None:
            raise refuse(
                "unconditional",
                self.unconditional,
                "scoring='label' has no use for it, so leave it out",
                mentions=("scoring",),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted:
    """The server accepted the group."""

    group_id: str
    request_id: str
    model: str
    document_tokens: int
    shared_tokens: int
    route: Route = "branches"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """A scored branch: its tokens, its labels, its usage."""

    index: int
    request_id: str
    tokens: tuple[TokenScore, ...]
    labels: tuple[LabelScore, ...] | None
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFailed:
    """A branch failed on the server, which states whether a retry can help."""

    index: int
    request_id: str
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCompleted:
    """Every branch has been answered.

    ``backlog`` is the work queued on the server, in full rounds; None where the server
    does not report it.
    """

    usage: GroupUsage
    backlog: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchText:
    """A generated branch: its text, and its usage."""

    index: int
    request_id: str
    text: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int


BranchEvent: TypeAlias = (
    GroupStarted | BranchResult | BranchText | BranchFailed | GroupCompleted
)
