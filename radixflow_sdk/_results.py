"""Results: scores, rankings, generated text, and their usage.

Values are frozen and hashable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from radixflow_sdk import _scoring
from radixflow_sdk._requests import GenerationRequest, Label, Normalize, ScoreRequest
from radixflow_sdk._validate import refuse
from radixflow_sdk.exceptions import BranchError, RadixFlowError

SHOWN = 4
"""Candidates that a result's repr shows."""
MAX_SHOWN = 40
"""Characters of an option that it shows."""
_FAILURE = ("index", "code", "retryable", "request_id")

Route: TypeAlias = Literal["branches", "trie", "echo", "completions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """One token and its natural log-probability given everything before it.

    Attributes:
        token_id: The token.
        logprob: Its log-probability over the full vocabulary.
        is_top: Whether no token is more likely there; None where it is not known.
    """

    token_id: int
    logprob: float
    is_top: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScore:
    """A label, its token, and its natural log-probability after one candidate."""

    label: Label
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one branch's prompt.

    Attributes:
        prompt_tokens: Document, question and option.
        cached_tokens: Of these, the tokens read from the prefix cache.
        computed_tokens: Of these, the tokens computed.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """Tokens of a whole group, over all of its requests.

    Attributes:
        prompt_tokens: Sum over the finished branches.
        cached_tokens: Sum over the finished branches.
        computed_tokens: Sum over the finished branches.
        rounds: Worker rounds from the group's first to its last; None where the server
            does not run the RadixFlow scheduler.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    rounds: int | None


def sum_usage(
    usages: Sequence[Usage] | Sequence[GroupUsage], *, rounds: int | None = None
) -> GroupUsage:
    """The usage of many branches, or of many requests, as that of one group."""
    return GroupUsage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        computed_tokens=sum(usage.computed_tokens for usage in usages),
        rounds=rounds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """One option with its score, available as soon as its branch finishes.

    Attributes:
        index: Position in ``options``.
        text: The option as given; None for an option given as token ids.
        score: The score under ``scoring`` and ``normalize``, in nats (per unit).
            Higher is better.
        scores: The score under every available normalizer: ``char`` and ``byte`` for
            options given as text, ``pmi`` with an unconditional context.
        tokens: The option's tokens and their log-probabilities; with label scoring the
            one generated token.
        labels: With label scoring, each label's log-probability; else None.
        usage: Tokens of the branch. A duplicate has its original's.
        duplicate_of: Index of the first equal option; None for that one itself.
        request_id: The server's id of the branch, as its log names it.
    """

    index: int
    text: str | None
    score: float
    scores: Mapping[Normalize, float] = field(hash=False)
    tokens: tuple[TokenScore, ...]
    labels: tuple[LabelScore, ...] | None
    usage: Usage
    duplicate_of: int | None
    request_id: str

    @property
    def is_greedy(self) -> bool | None:
        """Whether greedy decoding generates the option: each token is the most likely.

        A tie for the top counts as greedy. None where it is not known, and with label
        scoring.
        """
        tops = [token.is_top for token in self.tokens]
        if self.labels is not None or None in tops:
            return None
        return all(tops)

    @property
    def label_mass(self) -> float | None:
        """Label scoring: the probability that the next token is one of the labels.

        Near 0 the model prefers another continuation, and the ratio of the labels means
        little. None without label scoring.
        """
        return None if self.labels is None else _scoring.label_mass(self.labels)

    @property
    def top_is_label(self) -> bool | None:
        """Label scoring: whether the most likely next token is a label; else None."""
        if self.labels is None:
            return None
        return self.tokens[0].token_id in {label.token_id for label in self.labels}

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
    """A candidate in a ranking.

    Attributes:
        probability: Softmax of the scores over all candidates (duplicates count each);
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
        shared_tokens: Tokens that the prompts of all branches have in common.
        elapsed: Seconds from call to result, with the wait for a slot.
        normalize: The normalizer of `Candidate.score`.
        route: How the scores were computed. ``branches``: by RadixFlow's plug-in. On a
            server without it, ``trie``: one completion for each distinct prefix of an
            option; ``echo``: every logits row of every prompt, recomputed.
        failures: With ``partial="return"``, one error for each option without a
            score, in the order of ``options``; `candidates` and their probabilities
            then cover the others alone.
    """

    candidates: tuple[Candidate, ...]
    usage: GroupUsage
    group_id: str
    request_id: str
    model: str
    document_tokens: int
    shared_tokens: int
    elapsed: float
    normalize: Normalize
    route: Route = "branches"
    failures: tuple[BranchError, ...] = ()

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{_named(own)} {own.probability:.3f}" for own in self.candidates[:SHOWN]
        )
        more = len(self.candidates) - SHOWN
        rest = f" and {more} more" if more > 0 else ""
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<ScoreResult {shown}{rest}{failed}; {self.normalize}, {self.model}>"

    def _repr_html_(self) -> str:
        """The ranking as a table, for notebooks."""
        rows = "".join(
            f"<tr><td>{rank}<td>{escape(_named(own))}<td>{own.score:.4f}"
            f"<td>{own.probability:.4f}<td>{len(own.tokens)}</tr>"
            for rank, own in enumerate(self.candidates, start=1)
        )
        return (
            f"<table><caption>{escape(self.model)}, {self.normalize}</caption>"
            "<tr><th>rank<th>option<th>score<th>probability<th>tokens</tr>"
            f"{rows}</table>"
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as dicts, lists, texts and numbers; see `from_dict`."""
        failures = [
            {"message": str(error), **{name: getattr(error, name) for name in _FAILURE}}
            for error in self.failures
        ]
        return {**asdict(replace(self, failures=())), "failures": failures}

    def to_json(self) -> str:
        """`to_dict` as JSON; what is not finite is written as in Python's `json`."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ScoreResult:
        """The result that `to_dict` or `to_json` wrote.

        Raises:
            InvalidInputError: The values are of something else.
        """
        try:
            return cls(
                **{
                    **values,
                    "candidates": tuple(map(_candidate, values["candidates"])),
                    "usage": GroupUsage(**values["usage"]),
                    "failures": tuple(
                        BranchError(**failure) for failure in values["failures"]
                    ),
                }
            )
        except (AttributeError, KeyError, TypeError) as error:
            advice = f"give what to_dict wrote ({error!r})"
            raise refuse("values", values, advice) from None

    @property
    def best(self) -> Candidate:
        """The first of `candidates`."""
        return self.candidates[0]

    def under(self, normalize: Normalize) -> ScoreResult:
        """The same answer ranked under another normalizer, without a request.

        Raises:
            InvalidInputError: A candidate has no such score (`ScoredCandidate.scores`).
        """
        for candidate in self.candidates:
            if normalize not in candidate.scores:
                raise refuse(
                    "normalize",
                    normalize,
                    f"options[{candidate.index}] was scored under "
                    f"{', '.join(candidate.scores)} only",
                )
        given = sorted(self.candidates, key=lambda candidate: candidate.index)
        scores = [candidate.scores[normalize] for candidate in given]
        return replace(
            self,
            normalize=normalize,
            candidates=tuple(
                replace(
                    given[standing.place],
                    score=scores[standing.place],
                    probability=standing.probability,
                    tied=standing.tied,
                )
                for standing in _scoring.rank(scores)
            ),
        )

    def brier(self, gold: int) -> float:
        """Brier's score of `Candidate.probability` where ``options[gold]`` is right.

        The sum over options of (probability - 1 if right else 0) squared: 0 is certain
        and right, 2 certain and wrong. ``result.under("sum").brier(gold)`` is
        lm-evaluation-harness's ``brier_score`` of one question.

        Raises:
            InvalidInputError: No candidate has that index.
        """
        given = sorted(self.candidates, key=lambda candidate: candidate.index)
        places = [candidate.index for candidate in given]
        if gold not in places:
            raise refuse("gold", gold, "give the index of an option that has a score")
        return _scoring.brier([c.probability for c in given], places.index(gold))


def _named(candidate: ScoredCandidate) -> str:
    """A candidate's option as a listing shows it."""
    text = f"option {candidate.index}" if candidate.text is None else candidate.text
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def _candidate(values: Mapping[str, Any]) -> Candidate:
    labels = values["labels"]
    return Candidate(
        **{
            **values,
            "tokens": tuple(TokenScore(**token) for token in values["tokens"]),
            "labels": labels and tuple(LabelScore(**label) for label in labels),
            "usage": Usage(**values["usage"]),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterChoice:
    """One option listed behind a letter.

    Attributes:
        index: Position in ``options``.
        text: The option.
        probability: Mean of `by_order`; these sum to 1 over the options.
        by_order: For each order of the options, the probability of the option's letter
            among the letters. Differences show position bias.
        tied: Another option has exactly this probability.
    """

    index: int
    text: str
    probability: float
    by_order: tuple[float, ...]
    tied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterResult:
    """The choice among letters, over all orders of the options.

    Attributes:
        choices: Best first; equal ones in the order of ``options``.
        label_mass: Mean probability that the next token is one of the letters.
        group: The scored group: one candidate for each order.
    """

    choices: tuple[LetterChoice, ...]
    label_mass: float
    group: ScoreResult

    @property
    def best(self) -> LetterChoice:
        """The first of `choices`."""
        return self.choices[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPassage:
    """A passage and its relevance to a query.

    Attributes:
        index: Position in ``passages``.
        text: The passage as given.
        score: Higher is better. With ``mode="label"`` the probability of a yes among
            yes and no; with ``query_likelihood`` the mean log-probability of the
            query's tokens.
    """

    index: int
    text: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankResult:
    """Passages in the order of their relevance.

    Attributes:
        passages: Best first, at most ``top_n``.
        model: The model that scored.
        groups: The groups that were scored: one, or with ``query_likelihood`` one for
            each passage.
    """

    passages: tuple[RankedPassage, ...]
    model: str
    groups: tuple[ScoreResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedBranch:
    """One branch, and the text generated after it.

    Attributes:
        index: Position in ``branches``.
        branch: The branch as given; None for one given as token ids.
        text: The generated text, without the stop text.
        finish_reason: ``stop`` (a stop text or the end-of-text token), ``length``
            (``max_tokens`` or the model's length), or another reason of the server.
        prompt_tokens: Tokens of document and branch.
        generated_tokens: Tokens of ``text``, and of its end where there is one.
        request_id: The server's id of the branch.
    """

    index: int
    branch: str | None
    text: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The text generated after each branch of one document.

    Attributes:
        branches: In the order given.
        group_id: The group, as the server's log and metrics name it.
        request_id: ``X-Request-ID`` of the group's last request.
        model: The model that generated.
        shared_tokens: Tokens of the prefix that all prompts share, as in the hints; 0
            where it is not known.
        prompt_tokens: Sum over the branches. Such answers do not report how many came
            from the prefix cache.
        generated_tokens: Sum over the branches.
        elapsed: Seconds from call to result, with the wait for a slot.
        failures: With ``partial="return"``, one error for each branch without a text;
            `branches` are then the others.
    """

    branches: tuple[GeneratedBranch, ...]
    group_id: str
    request_id: str
    model: str
    shared_tokens: int
    prompt_tokens: int
    generated_tokens: int
    elapsed: float
    failures: tuple[BranchError, ...] = ()


RequestT = TypeVar("RequestT", bound=ScoreRequest | GenerationRequest)
ResultT = TypeVar("ResultT", bound=ScoreResult | GenerationResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[RequestT, ResultT]):
    """The outcome of one of many groups: a result or an error, never both.

    Attributes:
        index: Position of the request among the requests.
        request: The request as given.
        result: Its result; None where it failed.
        error: Why it failed; a `PartialGroupError` keeps the finished branches.
    """

    index: int
    request: RequestT
    result: ResultT | None = None
    error: RadixFlowError | None = None

    def unwrap(self) -> ResultT:
        """The result.

        Raises:
            RadixFlowError: The group's error, where it failed.
        """
        if self.result is None:
            raise self.error or RadixFlowError("An outcome without result and error.")
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of many groups.

    Attributes:
        done: Groups that ended, the failed ones included.
        failed: Of these, the failed ones.
        total: Number of groups; None where it is not known.
        elapsed: Seconds since the start.
    """

    done: int
    failed: int
    total: int | None
    elapsed: float
