"""In float32 a score read behind the cache is the uncached score, to 1e-4 nat.

bfloat16 moves a token by hundredths of a nat from one batch to another (by tenths
where the model is far off its texts), and a fault of that size would hide there.  Here
nothing of that size is left.
"""

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks._trees import LOADS, make_load
from tests.e2e import trees
from tests.e2e.loads import Load, loads
from tests.e2e.served import Answer, Served, fresh_salt, serving

pytestmark = pytest.mark.server

Encode = Callable[[str], list[int]]
ROOT = Path(__file__).parents[2]
XQUAD = ROOT / "tests" / "evals" / "data" / "xquad.jsonl"
EXACT = 1e-4
"""Nats a token: what float32 leaves of sums in another order."""


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The bundled model in float32, its recurrent layers computed step by step."""
    worker = "tests.e2e.float32_worker.Float32Worker"
    flags = ("--dtype", "float32", "--worker-cls", worker)
    folder = tmp_path_factory.mktemp("float32")
    with serving(folder, *flags, PYTHONPATH=str(ROOT)) as served:
        yield served


def far_off() -> list[Load]:
    """English and Chinese paragraphs, which the model was never trained for."""
    rows = map(json.loads, XQUAD.read_text("utf-8").rstrip("\n").split("\n"))
    return [
        Load(row["document"], asked["question"], tuple(asked["options"]))
        for row in rows
        for asked in row["questions"]
    ]


def ask(server: Served, load: Load, salt: str, **fields: object) -> Answer:
    return server.group(
        load.document,
        load.branches,
        question=load.text_question,
        cache_salt=salt,
        **fields,
    )


@pytest.fixture(scope="module")
def expected(exact: Served, encode: Encode) -> list[tuple[Load, list[list[float]]]]:
    """Loads with each option's rows, by one uncached request an option."""
    asked = [*loads(), *random.Random(5).sample(far_off(), 8)]
    made = []
    for load in asked:
        context = load.document + load.text_question
        rows = exact.uncached([encode(context + branch) for branch in load.branches])
        made.append((load, [row[len(encode(context)) - 1 :] for row in rows]))
    return made


@pytest.mark.parametrize("policy", ["radixflow+", "radixflow", "radix"])
def test_cold_warm_and_crowded_groups(
    exact: Served, expected: list[tuple[Load, list[list[float]]]], policy: str
) -> None:
    asked = [load for load, _ in expected]
    salt = fresh_salt()
    with exact.policy(policy):
        with ThreadPoolExecutor(len(asked)) as pool:
            crowded = list(pool.map(lambda load: ask(exact, load, salt), asked))
        warm = [ask(exact, load, salt) for load in asked]
        alone = [ask(exact, load, fresh_salt()) for load in asked]
    assert any(min(answer.cached) > 0 for answer in warm)
    for answers in (crowded, warm, alone):
        for answer, (_, rows) in zip(answers, expected, strict=True):
            for row, other in zip(answer.rows, rows, strict=True):
                assert row == pytest.approx(other, abs=EXACT)


def test_hits_at_every_unit_of_a_block(exact: Served, encode: Encode) -> None:
    """A state resumed at 16, 32, ... tokens, inside a block and at its end."""
    unit = exact.stats()["settings"]["match_unit"]
    prompt = encode(loads()[6].document)[: 20 * unit]
    [uncached] = exact.uncached([prompt])
    for length in range(unit + 1, len(prompt) - unit, unit):
        # Four, so that a checkpoint pays behind 16 tokens already.
        tails = [prompt[length : length + 8 + more] for more in range(4)]
        answer = Answer.read(
            exact.post(
                {
                    "document": {"token_ids": prompt[:length]},
                    "branches": [{"token_ids": tail} for tail in tails],
                    "cache_salt": fresh_salt(),
                }
            ).text
        )
        assert sorted(answer.cached)[1:] == 3 * [length - 1]
        for row in answer.rows:
            expected = uncached[length - 1 : length - 1 + len(row)]
            assert row == pytest.approx(expected, abs=EXACT), length


def test_labels(exact: Served, encode: Encode) -> None:
    load = loads()[5]
    question = f"\n\nQuestion: {load.question}"
    branches = tuple(f"\nCandidate: {option}\nCorrect:" for option in load.options)
    salt = fresh_salt()
    for _ in ("cold", "warm"):
        answer = exact.group(
            load.document,
            branches,
            question=question,
            scoring="label",
            labels=[" yes", " no"],
            cache_salt=salt,
        )
        for number, label in enumerate((" yes", " no")):
            prompts = [encode(load.document + question + one) for one in branches]
            rows = exact.uncached([prompt + encode(label) for prompt in prompts])
            read = [values[number] for values in answer.labels]
            assert read == pytest.approx([row[-1] for row in rows], abs=EXACT)


@pytest.mark.parametrize(
    "load",
    ["w6", *(pytest.param(n, marks=pytest.mark.slow) for n in LOADS if n != "w6")],
)
def test_trees(exact: Served, load: str) -> None:
    """Crowded, warm and one after another, with groups that hang up among them."""
    groups = make_load(load, share=0.1)
    expected = trees.uncached(exact, groups)
    salt, alone = fresh_salt(), fresh_salt()
    with ThreadPoolExecutor(2 * len(groups)) as pool:
        left = [pool.submit(trees.hang_up, exact, one, salt) for one in groups[::3]]
        crowded = list(pool.map(lambda one: trees.ask(exact, one, salt), groups))
        for one in left:
            one.result()
    warm = [trees.ask(exact, group, salt) for group in groups]
    in_turn = [trees.ask(exact, group, alone) for group in groups]
    assert sum(answer.usage["cached_tokens"] for answer in warm) > 0
    for answers in (crowded, warm, in_turn):
        trees.check(groups, answers, expected, trees.within(EXACT))


@pytest.mark.parametrize(
    "load",
    ["w4", *(pytest.param(n, marks=pytest.mark.slow) for n in LOADS if n != "w4")],
)
def test_trees_of_clients_without_hints(exact: Served, load: str) -> None:
    """Together, then once more one after another."""
    groups = make_load(load, share=0.1)
    prompts = [prompt for group in groups for prompt in group.prompts]
    expected = [trees.complete(exact, prompt, fresh_salt()) for prompt in prompts]
    salt = fresh_salt()
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(
            pool.map(lambda prompt: trees.complete(exact, prompt, salt), prompts)
        )
    again = [trees.complete(exact, prompt, salt) for prompt in prompts]
    for answers in (together, again):
        for answer, wanted in zip(answers, expected, strict=True):
            assert answer == pytest.approx(wanted, abs=EXACT)
