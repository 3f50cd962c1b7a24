"""Compare a server's cached scores with its uncached scores, on its own model.

Each branch of about 36 groups is scored alone in an empty cache namespace, then in its
group with an empty cache, again with a full one, and with all groups at once. The
prompt lengths surround the positions at which a branch can resume: multiples of the
match unit and of the cache block. `_doctor` reports the findings.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._findings import Finding
from radixflow_sdk._prompt import Template
from radixflow_sdk._requests import GenerationRequest
from radixflow_sdk._results import ScoreResult
from radixflow_sdk.exceptions import RadixFlowError

__all__ = ["Case", "Trial", "cases", "check_hits", "lengths", "try_exactness"]

Ids = tuple[int, ...]

_TEXT = (
    "The river runs past the old mill and on to the harbour of the town, where Anna "
    "keeps a small shop that sells lamps, letters and garden tools."
)
_AT_ONCE = 8
"""Branches scored alone at a time: few, so that their batches stay small."""
_MIN_LIMIT = 0.2
_LIKELY = -6.0
"""Less likely tokens are not compared: bfloat16 rounds their large logits coarsely."""
_TIMES_ROUNDING = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """One group.

    Attributes:
        name: the length under test, and the kind of scoring.
        family: cases of one family share a cache namespace.
        document: token ids before every option.
        options: token ids of each option.
        labels: token ids of the labels; empty for likelihoods.
    """

    name: str
    family: int
    document: Ids
    options: tuple[Ids, ...]
    labels: Ids = ()


@dataclass(slots=True)
class Largest:
    """The largest difference so far, and where it occurred.

    Attributes:
        nats: the difference.
        where: the case, in words that allow to reproduce it.
        numbers: number of compared scores.
    """

    nats: float = 0.0
    where: str = ""
    numbers: int = 0


@dataclass(slots=True)
class Trial:
    """The answers of a server.

    Attributes:
        alone: values of each branch of each case, scored without a cache.
        rounding: the largest difference between two such scores.
        phases: for each phase, the largest difference from `alone`.
        hits: for each likelihood case, tokens reused in the second run.
    """

    alone: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    rounding: Largest = field(default_factory=Largest)
    phases: dict[str, Largest] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Difference in nats beyond which a score is wrong."""
        return max(_MIN_LIMIT, _TIMES_ROUNDING * self.rounding.nats)


def lengths(block: int, unit: int, maximum: int) -> list[int]:
    """Document lengths around multiples of units and blocks, at most `maximum`."""
    found = {near for at in (unit, block) for near in (at - 1, at, at + 1)}
    found |= {block + unit, 2 * block + 5 * unit + 1, 3 * block - 1}
    return sorted(length for length in found if 1 < length <= maximum)


def cases(ids: Sequence[int], settings: Mapping[str, Any]) -> list[Case]:
    """Groups for a server with these settings, from the token ids of a text.

    Three documents of a family share a prefix, so that prompts diverge at several
    depths and inside blocks; scored options differ in length.
    """
    unit, block = settings["match_unit"], settings["block_size"]
    stem, tail = 2 * unit + 3, unit + 3
    longest = settings["max_model_len"] - 2 * stem - 2 * tail - 2
    labels = tuple(sorted(set(ids))[:2])
    rng = random.Random(11)
    made = []
    for family, length in enumerate(lengths(block, unit, longest)):

        def take(count: int) -> Ids:
            first = rng.randrange(len(ids))
            return tuple(ids[(first + at) % len(ids)] for at in range(count))

        whole = take(length + 2 * stem)
        sizes = (2, 3, 9, tail)
        for depth in range(3):
            document = whole[: length + depth * stem]
            options = tuple(take(size) for size in sizes)
            name = f"{length} + {depth * stem} tokens, likelihoods"
            made.append(Case(name, family, document, options))
        # Labels are read after options with a common prefix, which are not scored.
        begins = take(stem)
        options = tuple(begins[: 5 * size] + take(size) for size in sizes)
        name = f"{length} tokens, labels"
        made.append(Case(name, family, whole[:length], options, labels))
    return made


async def try_exactness(
    client: RadixFlowClient, settings: Mapping[str, Any], trial: Trial
) -> AsyncGenerator[Finding, None]:
    """Score every case in every phase; yield the finding of each phase.

    Args:
        client: of one server.
        settings: the server's, as its stats have them.
        trial: receives the answers.

    Raises:
        RadixFlowError: the server does not answer.
    """
    made = cases(await _token_ids(client), settings)
    groups = _Groups(client, made)
    await groups.alone(trial)
    branches, how_many = len(trial.alone), len(made)
    yield Finding(
        level="ok",
        what=f"scored {branches} branches alone; between two batches its scores move "
        f"by at most {trial.rounding.nats:.4f} nat, so that {trial.limit:.2f} is wrong",
    )
    for phase in ("in a group", "again", "all groups at once"):
        largest = trial.phases[phase] = Largest()
        async for finding in groups.together(phase, trial, largest):
            yield finding
            return
        yield Finding(
            level="ok",
            what=f"{phase}: {largest.numbers} scores of {how_many} groups differ from "
            f"those alone by at most {largest.nats:.4f} nat",
        )
    yield check_hits(trial.hits, made, settings)


def check_hits(
    hits: Mapping[str, int], made: Sequence[Case], settings: Mapping[str, Any]
) -> Finding:
    """Whether each repeated group resumed at the last possible position."""
    unit = settings["match_unit"]
    short = []
    for case in made:
        possible = (len(case.document) - 1) // unit * unit
        if not case.labels and hits[case.name] < possible:
            short.append(f"{hits[case.name]} of {possible} ({case.name})")
    tried = sum(not case.labels for case in made)
    what = (
        f"repeated groups resume as far as they can in {tried - len(short)} of {tried}"
    )
    if not short:
        return Finding(level="ok", what=what)
    change = f"short documents may be cheaper to compute again; {'; '.join(short[:6])}"
    return Finding(level="note", what=what, change=change)


class _Groups:
    def __init__(self, client: RadixFlowClient, made: Sequence[Case]) -> None:
        self._client = client
        self._cases = made
        self._salts: dict[int, str] = {}

    async def alone(self, trial: Trial) -> None:
        """Score each branch in its own cache namespace, and every fourth case twice."""
        slots = anyio.CapacityLimiter(_AT_ONCE)
        again: dict[tuple[str, int], tuple[float, ...]] = {}

        async def score(case: Case, index: int, kept: dict[Any, Any]) -> None:
            async with slots:
                result = await self._score(case, _salt(), case.options[index])
            [kept[case.name, index]] = _values(result)

        for kept in (trial.alone, again):
            async with anyio.create_task_group() as tasks:
                for number, case in enumerate(self._cases):
                    if kept is again and number % 4:
                        continue
                    for index in range(len(case.options)):
                        tasks.start_soon(score, case, index, kept)
            slots.total_tokens = 4 * _AT_ONCE  # larger batches the second time
        for key, values in again.items():
            _compare(trial.rounding, trial.alone[key], values, str(key))

    async def together(
        self, phase: str, trial: Trial, largest: Largest
    ) -> AsyncGenerator[Finding, None]:
        """Score each case as a group; yield a finding for the first wrong one."""
        if phase == "all groups at once":
            self._salts.clear()
            results: dict[str, ScoreResult] = {}

            async def score(case: Case) -> None:
                results[case.name] = await self._score(case, self._salt_of(case))

            async with anyio.create_task_group() as tasks:
                for case in self._cases:
                    tasks.start_soon(score, case)
            for case in self._cases:
                if wrong := _judge(case, results[case.name], phase, trial, largest):
                    yield wrong
                    return
            return
        for case in self._cases:
            result = await self._score(case, self._salt_of(case))
            if phase == "again":
                trial.hits[case.name] = min(c.cached_tokens for c in result.candidates)
            if wrong := _judge(case, result, phase, trial, largest):
                yield wrong
                return

    def _salt_of(self, case: Case) -> str:
        return self._salts.setdefault(case.family, _salt())

    async def _score(
        self, case: Case, salt: str, option: Ids | None = None
    ) -> ScoreResult:
        return await self._client.score_candidates(
            case.document,
            case.options if option is None else [option],
            scoring="label" if case.labels else "likelihood",
            template=Template(before_option=""),
            labels=case.labels or None,
            cache_salt=salt,
        )


def _judge(
    case: Case, result: ScoreResult, phase: str, trial: Trial, largest: Largest
) -> Finding | None:
    """Compare one group with its branches alone; a finding if it differs."""
    for index, values in enumerate(_values(result)):
        where = (
            f"option {index} of {len(case.options[index])} tokens behind "
            f"{case.name}, {phase}"
        )
        _compare(largest, trial.alone[case.name, index], values, where)
    if largest.nats <= trial.limit:
        return None
    return Finding(
        level="bad",
        what=f"wrong by {largest.nats:.3f} nat: {largest.where}",
        change="do not rely on its scores; report all of this with the server's log",
    )


def _compare(
    largest: Largest, one: Sequence[float], other: Sequence[float], where: str
) -> None:
    for value, wanted in zip(other, one, strict=True):
        if wanted < _LIKELY and value < _LIKELY:
            continue
        largest.numbers += 1
        if not abs(value - wanted) <= largest.nats:
            largest.nats, largest.where = abs(value - wanted), where


def _values(result: ScoreResult) -> Iterator[tuple[float, ...]]:
    """Log-probabilities of each option, in the order of the options."""
    for candidate in sorted(result.candidates, key=lambda one: one.index):
        read = candidate.tokens if candidate.labels is None else candidate.labels
        yield tuple(one.logprob for one in read)


def _salt() -> str:
    return f"doctor-{uuid.uuid4().hex}"


async def _token_ids(client: RadixFlowClient) -> Ids:
    """Token ids of a text that the server's own model finds likely.

    bfloat16 moves the score of an unlikely token by tenths of a nat from one chunk to
    another, so random words would hide faults.
    """
    begins = [f" {word}" for word in _TEXT.split()[:8]]
    request = GenerationRequest(_TEXT, begins, max_tokens=80, temperature=0.7)
    try:
        result = await client.run(request)
        written = [branch.text for branch in result.branches]
        text = " ".join(written).strip() or _TEXT
    except RadixFlowError:
        text = _TEXT
    scored = await client.score_candidates(_TEXT, [text, "end"])
    return next(c.token_ids for c in scored.candidates if c.index == 0)
