"""Random loads for the engine: what a few busy clients would do, as data.

`loads` is a hypothesis strategy; `play` acts one out on a `Driver`.  A load names
documents and requests by number, so that the same one can be played on two schedulers
and compared step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from vllm.v1.request import Request

from tests.engine.harness import Driver, Knobs, make_group, make_request, tokens

TAILS = ("own", "question", "duplicates", "prefixes")
"""How the branches of a group relate beyond the document."""


@dataclass(frozen=True)
class Send:
    """A group arrives; `lie` replaces the boundaries in its hints."""

    document: int
    tails: str
    branches: int
    question: int
    scored: int
    salt: str | None
    priority: int
    hinted: bool
    lie: tuple[int, ...] | None


@dataclass(frozen=True)
class Chat:
    """Plain requests over one document arrive, `copies` at a time."""

    document: int
    answer: int
    copies: int
    priority: int


@dataclass(frozen=True)
class Turn:
    """The engine loop turns."""

    times: int


@dataclass(frozen=True)
class Abort:
    """A client goes away; `which` counts from the youngest request."""

    which: int
    while_running: bool


Action = Send | Chat | Turn | Abort


@dataclass(frozen=True)
class Load:
    """Knobs, documents (their lengths) and what happens."""

    knobs: dict[str, Any]
    documents: tuple[int, ...]
    actions: tuple[Action, ...]


@st.composite
def loads(
    draw: st.DrawFn,
    *,
    blocks: Sequence[int] = (2000,),
    aborts: bool = True,
    lies: bool = False,
    priorities: bool = False,
) -> Load:
    """Loads for one scheduler.

    Args:
        draw: hypothesis' own.
        blocks: sizes of the block pool to choose from.
        aborts: whether clients go away.
        lies: whether hints may lie.
        priorities: whether requests have different priorities.
    """
    block = draw(st.sampled_from((32, 64)))
    unit = draw(st.sampled_from((16, block)))
    near = (unit - 1, unit, unit + 1, block - 1, block, block + 1, 2 * block + 5, 300)
    priority = st.integers(0, 2) if priorities else st.just(0)
    lie = st.none()
    if lies:
        length = st.sampled_from((0, 1, unit, block, 2 * block, 299, 10**9))
        announced = st.frozensets(length.filter(bool), max_size=4)  # well formed
        lie = st.none() | announced.map(sorted).map(tuple)
    document = st.integers(0, 2)
    send = st.builds(
        Send,
        document=document,
        tails=st.sampled_from(TAILS),
        branches=st.integers(1, 5),
        question=st.sampled_from((0, 3, unit + 3, block + 7, 2 * block + 1)),
        scored=st.sampled_from((1, 2, 40)),
        salt=st.sampled_from((None, None, "tenant")),
        priority=priority,
        hinted=st.booleans(),
        lie=lie,
    )
    chat = st.builds(
        Chat, document, st.sampled_from((1, 4, 90)), st.sampled_from((1, 6)), priority
    )
    turn = st.builds(Turn, st.integers(1, 3))
    choices: list[st.SearchStrategy[Any]] = [send, send, chat, turn, turn]
    if aborts:
        choices.append(st.builds(Abort, st.integers(0, 6), st.booleans()))
    return Load(
        knobs={
            "block_size": block,
            "match_unit": unit,
            "num_blocks": draw(st.sampled_from(blocks)),
            "rows": draw(st.sampled_from((2, 4, 16))),
            "token_budget": draw(st.sampled_from((block + 16, 3 * block, 1024))),
            "recurrent_groups": draw(st.sampled_from((1, 3))),
            "retention": draw(st.sampled_from((0, None))),
        },
        documents=tuple(draw(st.tuples(*[st.sampled_from(near)] * 3))),
        actions=tuple(draw(st.lists(st.one_of(choices), min_size=1, max_size=12))),
    )


def driver_for(load: Load, **knobs: Any) -> Driver:
    """A fresh driver on a scheduler with the load's knobs, some overridden."""
    return Driver.on(Knobs(**{**load.knobs, **knobs}))


def play(driver: Driver, load: Load, *, likelihood: bool = True) -> None:
    """Act the load out; the engine is left as it is at the end.

    Args:
        driver: a fresh driver, see `driver_for`.
        load: what happens.
        likelihood: read prompt rows (else one generated token for each branch).
    """
    documents = [
        tokens(("document", index), length)
        for index, length in enumerate(load.documents)
    ]
    for number, action in enumerate(load.actions):
        match action:
            case Send():
                driver.send(_group(driver, number, action, documents, likelihood))
            case Chat():
                driver.send(_chats(driver, number, action, documents))
            case Turn():
                for _ in range(action.times):
                    driver.step()
            case Abort():
                youngest = driver.sent[::-1][action.which : action.which + 1]
                if action.while_running:
                    driver.abort_while_running(*youngest)
                else:
                    driver.abort(*youngest)


def tails(kind: str, branches: int, question: Sequence[int]) -> list[list[int]]:
    """Tokens of each branch after the document.

    Args:
        kind: one of `TAILS`.
        branches: how many.
        question: tokens that they share beyond the document (not under ``own``).
    """
    same = tokens("answer", 90)
    match kind:
        case "own":
            return [tokens(("tail", i), 5 + 17 * i) for i in range(branches)]
        case "question":
            return [[*question, *tokens(("tail", i), 6 + i)] for i in range(branches)]
        case "duplicates":
            return [[*question, *same[:7]] for _ in range(branches)]
        case _:
            return [[*question, *same[: 2 + 9 * i]] for i in range(branches)]


def _group(
    driver: Driver,
    number: int,
    action: Send,
    documents: Sequence[Sequence[int]],
    likelihood: bool,
) -> list[Request]:
    question = tokens(("question", action.document), action.question)
    requests = make_group(
        driver.scheduler,
        f"g{number}",
        documents[action.document],
        tails(action.tails, action.branches, question),
        scored=action.scored,
        likelihood=likelihood,
        salt=action.salt,
        priority=action.priority,
        arrival=float(number),
        hinted=action.hinted,
    )
    if action.lie is not None:
        for request in requests:
            extra = request.sampling_params.extra_args
            extra["radixflow_boundaries"] = list(action.lie)
    return requests


def _chats(
    driver: Driver, number: int, action: Chat, documents: Sequence[Sequence[int]]
) -> list[Request]:
    return [
        make_request(
            driver.scheduler,
            f"c{number}-{copy}",
            [*documents[action.document], *tokens(("chat", number, copy), 9)],
            max_tokens=action.answer,
            priority=action.priority,
            arrival=float(number),
        )
        for copy in range(action.copies)
    ]
