"""The trie of logits rows that a group needs, and vLLM's completions parsed into rows.

An option's log-probability is the sum over its tokens; the logits row after the tokens
before a token holds that token's value. Options with a common prefix share rows, so the
rows form a trie. Each row is one completion of one token: vLLM always computes the row
of a generated token and never reads it from a cache. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from radixflow_sdk._transport._branches import is_log_probability
from radixflow_sdk._transport._errors import first_problem
from radixflow_sdk.exceptions import InvalidResponseError

MAX_IDS = 128
"""Token ids that vLLM gives of one row (its ``MAX_LOGPROB_TOKEN_IDS``)."""
MAX_ROWS = 64
"""Completions in one request, unless they have too many tokens for that."""
MAX_TOKENS = 200_000
"""Prompt tokens in one request, about 1.4 MB of JSON; one prompt may have more."""


class NotALogProbability(ValueError):
    """A row holds NaN, an infinity or -9999 in place of a log-probability."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One branch.

    Attributes:
        tokens: Document, question and branch.
        scored_from: Index of the branch's first own token.
    """

    tokens: tuple[int, ...]
    scored_from: int

    @property
    def own(self) -> tuple[int, ...]:
        """The branch's own tokens."""
        return self.tokens[self.scored_from :]


@dataclass(frozen=True, slots=True)
class Row:
    """One logits row: what is known of the token after some prompt.

    Attributes:
        top: The likeliest token.
        logprobs: Log-probability of some tokens, of ``top`` at least.
    """

    top: int
    logprobs: Mapping[int, float]

    def of(self, token: int) -> float:
        """Log-probability of a token.

        Raises:
            InvalidResponseError: The row lacks the token.
            NotALogProbability: The value is no log-probability.
        """
        if token not in self.logprobs:
            raise InvalidResponseError(
                f"The server sent a row without token {token}, which was requested; "
                "report this to its operator."
            )
        if not is_log_probability(self.logprobs[token]):
            raise NotALogProbability(
                f"the log-probability of token {token} is {self.logprobs[token]}"
            )
        return self.logprobs[token]

    def is_top(self, token: int) -> bool:
        """Whether no token is likelier."""
        return self.of(token) >= self.of(self.top)


@dataclass(slots=True)
class Pack:
    """Rows that one request reads.

    Attributes:
        ends: For each row, the tokens of its prompt after the trie's shared part.
        ids: The tokens to read from every one of them.
    """

    ends: list[tuple[int, ...]] = field(default_factory=list)
    ids: dict[int, None] = field(default_factory=dict)


class Trie:
    """The logits rows that a group needs, and those received so far.

    Args:
        prompts: The branches.
        labels: Token ids to read after each whole branch; empty reads the branches'
            own tokens.
    """

    def __init__(self, prompts: Sequence[Prompt], labels: Sequence[int] = ()) -> None:
        self._prompts, self._labels = prompts, tuple(dict.fromkeys(labels))
        cut = min(prompt.scored_from for prompt in prompts)
        whole = [prompt.tokens[:cut] for prompt in prompts]
        self.shared = whole[0][: common_length(whole)]
        self._rows: dict[tuple[int, ...], Row] = {}

    def packs(self) -> Iterator[Pack]:
        """What to request, in the order of the branches."""
        pack, budget = Pack(), MAX_TOKENS
        for end, wanted in self._wanted().items():
            for at in range(0, len(wanted), MAX_IDS):
                ids = dict.fromkeys(wanted[at : at + MAX_IDS])
                size = len(self.shared) + len(end)
                full = len(pack.ends) == MAX_ROWS or len(pack.ids | ids) > MAX_IDS
                if pack.ends and (full or size > budget):
                    yield pack
                    pack, budget = Pack(), MAX_TOKENS
                pack.ends.append(end)
                pack.ids |= ids
                budget -= size
        yield pack

    def add(self, pack: Pack, rows: Sequence[Row]) -> None:
        """Keep the rows that answer a pack."""
        for end, row in zip(pack.ends, rows, strict=True):
            old = self._rows.get(end)
            known = {**old.logprobs, **row.logprobs} if old else row.logprobs
            self._rows[end] = Row(row.top, known)

    def complete(self, index: int) -> bool:
        """Whether all rows of a branch have arrived."""
        return all(
            end in self._rows and self._rows[end].logprobs.keys() >= set(tokens)
            for end, tokens in self._needs(index)
        )

    def rows(self, index: int) -> list[Row]:
        """The rows of a branch: one for each own token, or the one of the labels."""
        return [self._rows[end] for end, _ in self._needs(index)]

    def _wanted(self) -> dict[tuple[int, ...], list[int]]:
        found: dict[tuple[int, ...], dict[int, None]] = {}
        for index in range(len(self._prompts)):
            for end, tokens in self._needs(index):
                found.setdefault(end, {}).update(dict.fromkeys(tokens))
        return {end: list(tokens) for end, tokens in found.items()}

    def _needs(self, index: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        prompt, start = self._prompts[index], len(self.shared)
        if self._labels:
            yield prompt.tokens[start:], self._labels
            return
        for at in range(prompt.scored_from, len(prompt.tokens)):
            yield prompt.tokens[start:at], (prompt.tokens[at],)


def common_length(sequences: Sequence[tuple[int, ...]]) -> int:
    """Length of the prefix that all of them share."""
    # The common prefix of the smallest and the largest is common to all between them.
    low, high = min(sequences), max(sequences)
    pairs = zip(low, high, strict=False)
    differing = (at for at, (one, other) in enumerate(pairs) if one != other)
    return next(differing, len(low))


# --- completions, parsed -------------------------------------------------------------

_Id = Annotated[str, Field(pattern=r"^token_id:[0-9]{1,18}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class _LogProbs(_Model):
    tokens: list[_Id]
    top_logprobs: list[dict[_Id, float] | None]


class _Choice(_Model):
    index: int
    logprobs: _LogProbs


class _Completions(_Model):
    choices: list[_Choice]


class _Tokens(_Model):
    tokens: list[Annotated[int, Field(ge=0)]]
    max_model_len: int | None = None


def read_generated(body: bytes, count: int) -> list[Row]:
    """The row of each completion, in the order of the prompts.

    Raises:
        InvalidResponseError: The body has another shape.
    """
    return [rows[-1] for rows in _read_choices(body, count)]


def read_echoed(body: bytes, tokens: Sequence[int]) -> list[Row]:
    """The rows of a prompt's tokens but the first, from one ``echo``.

    Raises:
        InvalidResponseError: The body has another shape or is for another prompt.
    """
    [rows] = _read_choices(body, 1, echoed=tokens)
    return rows


def read_tokens(body: bytes) -> tuple[tuple[int, ...], int | None]:
    """A text's token ids, and the model's length where the server reports it.

    Raises:
        InvalidResponseError: The body has another shape.
    """
    try:
        read = _Tokens.model_validate_json(body)
    except ValidationError as error:
        raise invalid_answer("/tokenize", error) from None
    return tuple(read.tokens), read.max_model_len


def _read_choices(
    body: bytes, count: int, echoed: Sequence[int] = ()
) -> list[list[Row]]:
    try:
        read = _Completions.model_validate_json(body)
    except ValidationError as error:
        raise invalid_answer("/v1/completions", error) from None
    choices = sorted(read.choices, key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(count)):
        raise invalid_answer(
            "/v1/completions", f"{len(choices)} choices for {count} prompts"
        )
    return [_read_rows(choice.logprobs, echoed) for choice in choices]


def _read_rows(found: _LogProbs, echoed: Sequence[int]) -> list[Row]:
    """One row for each token that has one: in an echo all but the first."""
    tokens = [_number(token) for token in found.tokens]
    rows = found.top_logprobs
    if not tokens or len(tokens) != len(rows) or tokens[: len(echoed)] != [*echoed]:
        raise invalid_answer("/v1/completions", "other tokens than those sent")
    parsed = [_row(row) for row in rows[1 if echoed else 0 :] if row]
    if not parsed or len(parsed) != len(rows) - bool(echoed):
        raise invalid_answer("/v1/completions", "a token without a row")
    return parsed


def _row(row: Mapping[str, float]) -> Row:
    logprobs = {_number(token): value for token, value in row.items()}
    return Row(max(logprobs, key=lambda token: logprobs[token]), logprobs)


def _number(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def invalid_answer(path: str, what: ValidationError | str) -> InvalidResponseError:
    """The error for an answer that is not vLLM's."""
    detail = first_problem(what) if isinstance(what, ValidationError) else what
    return InvalidResponseError(
        f"The server's answer to {path} is not vLLM's ({detail}); serve with vLLM 0.32 "
        "or newer, or better with `radixflow serve`."
    )
