"""What the benchmark of trees counts and claims, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks._trees import LOADS, Texts, chats, encode, limit16, make_load

pytestmark = [
    # lm-eval's own imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def trees() -> Any:
    from benchmarks import trees

    return trees


# --- loads ----------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_load() -> None:
    for name in LOADS:
        assert make_load(name, share=0.1) == make_load(name, share=0.1)
        assert make_load(name, share=0.1) != make_load(name, share=0.1, seed=8)


def test_a_passage_has_the_tokens_asked_for() -> None:
    texts = Texts(3)
    for tokens in (20, 60, 1500):
        assert len(encode(texts.passage(tokens))) == tokens


@pytest.mark.parametrize("name", LOADS)
def test_prompts_of_a_load_share_prefixes_at_its_levels(name: str) -> None:
    groups = make_load(name)
    prompts = [encode(prompt) for group in groups for prompt in group.prompts]
    least = limit16(prompts)
    whole = sum(map(len, prompts))
    if name == "w4":  # long options: little to share
        assert least < 0.8 * whole
    else:
        assert least < 0.2 * whole
    for group in groups:
        context = encode(group.context)
        for prompt in map(encode, group.prompts):
            assert prompt[: len(context)] == context
            assert len(prompt) < 2000


def test_few_shot_loads_are_the_same_prompts() -> None:
    pairs = zip(make_load("w2"), make_load("w2b"), strict=True)
    assert all(one.prompts == other.prompts for one, other in pairs)


def test_a_chat_grows_by_two_messages_a_turn() -> None:
    made = chats(sessions=2, turns=3)
    assert [len(messages) for messages in made] == [2, 4, 6] * 2
    assert made[1][:2] == made[0]
    assert made[3][0] == made[0][0]


# --- the limit ------------------------------------------------------------------------


def test_limit16_counts_what_no_earlier_prompt_has_in_whole_units() -> None:
    one, two = list(range(40)), [*range(32), *range(100, 120)]
    assert limit16([one]) == 40
    assert limit16([one, one]) == 40 + 8
    assert limit16([one, two]) == 40 + 20
    assert limit16([one, [*range(31), 99]]) == 40 + 16
    # The last token is computed again, and a whole unit with it.
    assert limit16([one, one[:32]]) == 40 + 16
    # Behind a difference nothing is a hit, however equal it is.
    assert limit16([one, [7, *one[1:]]]) == 40 + 40


# --- counting -------------------------------------------------------------------------


def noted(
    *rows: tuple[str, int], admitted: tuple[tuple[str, int, int], ...] = ()
) -> Any:
    return {"rows": [*rows], "admitted": [*admitted]}


def test_decoded_tokens_are_not_computed_ones(trees: Any) -> None:
    rounds = [
        noted(("a", 100), admitted=(("a", 130, 0),)),
        noted(("a", 30), ("b", 1), admitted=(("b", 129, 128),)),
        noted(("a", 1), ("b", 1)),
        noted(("a", 1)),
    ]
    assert trees.computed(rounds) == 131


def test_a_prompt_that_is_computed_again_counts_again(trees: Any) -> None:
    rounds = [noted(("a", 20), admitted=(("a", 20, 0),)), noted(("a", 20))]
    assert trees.computed(rounds) == 40


# --- claims ---------------------------------------------------------------------------


def figures(**given: float) -> dict[str, float]:
    return {
        "tokens": 100,
        "ratio": 1.0,
        "rounds": 10,
        "wall_s": 1.0,
        "mean_s": 1.0,
        "p99_s": 1.0,
        "token_difference_nat": 0.01,
        "score_difference_nat": 0.02,
    } | given


def found(trees: Any, seen: dict[str, Any], before: Any = None) -> dict[str, Any]:
    cell = trees.Cell("w6", "completions", "together", "radix")
    cells = {cell.under(arm): values for arm, values in seen.items()}
    then = {cell.under(arm): values for arm, values in (before or {}).items()}
    return {claim.name: claim for claim in trees.claims(cells, then)}


def test_a_load_that_is_worse_is_a_claim_that_is_not_met(trees: Any) -> None:
    stock, native = figures(rounds=40), figures()
    seen = {"stock": stock, "radix": native, "radixflow+": figures(tokens=110)}
    claims = found(trees, seen)
    worse = claims["w6, completions, together: tokens / native"]
    assert (worse.value, worse.target, worse.met) == (1.1, 1.0, False)
    kind = "completions, together: loads with more"
    assert claims[f"{kind} tokens"].value == 1
    assert claims[f"{kind} mean latency"].met
    assert "w6, completions, together: mean latency / native" not in claims
    assert claims["w6, completions, together: rounds / stock"].met


def test_latency_is_held_to_the_better_of_native_and_before(trees: Any) -> None:
    name = "w6, completions, together: mean latency / the better of native and before"
    seen = {"radix": figures(mean_s=2.0), "radixflow+": figures(mean_s=1.6)}
    assert name not in found(trees, seen)
    # The machine is half as fast as it was: 0.7 s then are 1.4 s now.
    before = {"radix": figures(mean_s=1.0), "radixflow+": figures(mean_s=0.7)}
    claim = found(trees, seen, before)[name]
    assert (claim.value, claim.met) == (1.143, False)
    before = {"radix": figures(mean_s=1.0), "radixflow+": figures(mean_s=3.0)}
    assert name not in found(trees, seen, before)


def test_rounds_are_held_to_those_of_before(trees: Any) -> None:
    seen = {"radix": figures(), "radixflow+": figures(rounds=11)}
    before = {"radix": figures(), "radixflow+": figures(rounds=10)}
    claim = found(trees, seen, before)["w6, completions, together: rounds / before"]
    assert (claim.value, claim.met) == (1.1, False)


def test_the_scores_have_to_be_the_uncached_ones(trees: Any) -> None:
    ours = figures(ratio=1.06, score_difference_nat=0.2)
    claims = found(trees, {"radix": figures(), "radixflow+": ours})
    name = "completions: largest difference of a score from an uncached run"
    assert not claims[name].met
    assert not claims["w6, completions, together: tokens / limit16"].met


# --- arrivals -------------------------------------------------------------------------


def test_one_by_one_every_request_is_a_unit(trees: Any) -> None:
    groups = trees.groups_of("w6")
    units = trees.units_of("w6", "one by one")
    assert len(units) == 2 * len(groups)  # four options each, half of the groups
    assert [unit.prompts[0] for unit in units[:4]] == groups[0].prompts


def test_every_cell_has_the_arm_that_it_is_compared_with(trees: Any) -> None:
    for quick in (False, True):
        work = list(trees.cells(quick))
        assert len(work) == len(set(work))
        for cell in work:
            assert cell.under("radix") in work
            if cell.arrival in trees.POISSON:  # its rate comes from native's together
                first = trees.Cell(cell.load, cell.way, "together", "radix")
                assert work.index(first) < work.index(cell)
