"""lm-eval's model, without a server: what is asked together, kept and refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model
from sqlitedict import SqliteDict

from radixflow_sdk import APIStatusError, InvalidInputError, UnsupportedError
from radixflow_sdk.evals import harness
from radixflow_sdk.evals.harness import RadixFlowLM, group_by_context, register
from radixflow_sdk.testing import FakeServer, Fault
from server_ext.demo import CHECKPOINT

# lm-eval's cache opens SQLite and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Server(FakeServer):
    """A fake that may keep to itself whether a token is the top one."""

    tells = True

    def _branch(self, branch: Any, *rest: Any) -> dict[str, Any]:
        line = super()._branch(branch, *rest)
        if "error" not in line:
            top = line["token_logprobs"][0] > -5
            tops = [top] * len(line["token_ids"])
            line["token_is_top"] = tops if self.tells else None
        return line


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with server.listen_in_thread() as url:
        yield url


def model(url: str, **changes: Any) -> RadixFlowLM:
    settings = {"base_url": url, "tokenizer": str(CHECKPOINT)}
    settings |= {"tokenizer_backend": "huggingface", **changes}
    return RadixFlowLM(**settings)


def asked(*pairs: tuple[str, str]) -> list[Instance]:
    return [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0)
        for pair in pairs
    ]


PAIRS = [
    ("Anna lives in Oslo. Where?", " Oslo"),
    ("Ben lives in Rome. Where?", " Oslo"),
    ("Anna lives in Oslo. Where?", " Rome"),
    ("Ben lives in Rome. Where?", " Rome"),
    ("Anna lives in Oslo. Where?", " Oslo"),
]


def test_options_of_a_context_are_one_group(server: Server, url: str) -> None:
    lm = model(url)
    answers = lm.loglikelihood(asked(*PAIRS), disable_tqdm=True)
    assert sorted(len(r.body["branches"]) for r in server.requests) == [2, 2]
    assert answers[0] == answers[4]
    assert len({logprob for logprob, _ in answers}) == 4
    for logprob, greedy in answers:
        assert greedy is (logprob > -5)
    contexts = {tuple(r.body["document"]["token_ids"]) for r in server.requests}
    assert contexts == {tuple(lm.tok_encode(context)) for context, _ in PAIRS}


def test_it_asks_the_server_for_model_and_length(server: Server, url: str) -> None:
    lm = model(f"{url}/v1/completions")
    assert lm.model == "fake"
    assert lm.max_length == 32768 - 1  # one token is generated
    assert lm.base_url == f"{url}/v1/completions"
    assert server.requests.maxlen


def test_a_server_that_tells_no_length(server: Server, url: str) -> None:
    server._scheduler = "Scheduler"
    with pytest.raises(InvalidInputError, match="max_length is None"):
        model(url)
    assert model(url, max_length=100).max_length == 99


def test_an_ended_run_goes_on_from_lm_evals_cache(
    server: Server, url: str, tmp_path: Path
) -> None:
    server.faults.extend([None, Fault(status=422, code="invalid_request")])
    cache = str(tmp_path / "answers.db")
    lm = model(url, num_concurrent=1, max_retries=1)
    with pytest.raises(APIStatusError) as caught:
        CachingLM(lm, cache).loglikelihood(asked(*PAIRS))
    (note,) = caught.value.__notes__
    assert "With --use_cache PATH they are kept" in note
    assert len(server.requests) == 2
    again = CachingLM(model(url), cache).loglikelihood(asked(*PAIRS))
    assert len(server.requests) == 3  # only the group that had failed
    assert again == model(url).loglikelihood(asked(*PAIRS))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("max_length", {"max_length": 50}),
        ("cache_salt", {"cache_salt": "another"}),
        ("model", {"model": "other"}),
    ],
)
def test_a_cache_of_other_settings_is_refused(
    url: str, tmp_path: Path, name: str, other: dict[str, Any]
) -> None:
    cache = str(tmp_path / "answers.db")
    CachingLM(model(url), cache).loglikelihood(asked(*PAIRS))
    with pytest.raises(InvalidInputError, match=f"another {name}") as caught:
        CachingLM(model(url, **other), cache)
    assert caught.value.field == "use_cache"
    CachingLM(model(url), cache)


def test_a_cache_that_does_not_say_what_filled_it_is_refused(
    url: str, tmp_path: Path
) -> None:
    cache = str(tmp_path / "answers.db")
    with SqliteDict(cache, autocommit=True) as filled:
        filled["a digest"] = (-1.0, False)
    with pytest.raises(InvalidInputError, match="unknown"):
        CachingLM(model(url), cache)


def test_rolling_windows_are_lm_evals(server: Server, url: str, tmp_path: Path) -> None:
    lm = model(url, max_length=12)
    texts = ["Anna lives in Oslo and likes pale green. " * 4, "Ben."]
    requests = [
        Instance(request_type="loglikelihood_rolling", doc={}, arguments=(t,), idx=0)
        for t in texts
    ]
    cache = CachingLM(lm, str(tmp_path / "answers.db"))
    sums = cache.loglikelihood_rolling(requests)
    sent = [
        [*r.body["document"]["token_ids"], *r.body["branches"][0]["token_ids"]]
        for r in server.requests
    ]
    assert len(sent) > 4
    assert max(map(len, sent)) <= 11
    before = len(server.requests)
    assert cache.loglikelihood_rolling(requests) == sums
    assert len(server.requests) == before
    # lm-eval's own loop, one window after the other, on the same server.
    parent = super(RadixFlowLM, lm)
    assert parent.loglikelihood_rolling(requests) == pytest.approx(sums)


def test_a_continuation_without_tokens_is_worth_nothing(
    server: Server, url: str
) -> None:
    answers = model(url).loglikelihood(asked(("Some text", "")), disable_tqdm=True)
    assert answers == [(0.0, True)]
    assert not server.requests


def test_no_context_means_the_first_token_of_a_text(server: Server, url: str) -> None:
    lm = model(url)
    lm.loglikelihood(asked(("", "Oslo")), disable_tqdm=True)
    (request,) = server.requests
    assert request.body["document"] == {"token_ids": [lm.prefix_token_id]}


def test_a_server_that_cannot_tell_greedy_is_named(server: Server, url: str) -> None:
    server.tells = False
    with pytest.raises(UnsupportedError, match="what greedy decoding would write"):
        model(url).loglikelihood(asked(*PAIRS), disable_tqdm=True)


def test_long_prompts_lose_their_beginning(caplog: pytest.LogCaptureFixture) -> None:
    requests = [
        (("a", "b"), list(range(10)), [90, 91]),
        (("a", "c"), list(range(10)), [92]),
        (("d", "e"), [7], [93]),
    ]
    groups = group_by_context(requests, 8)
    assert [group.context for group in groups] == [
        (3, 4, 5, 6, 7, 8, 9),
        (4, 5, 6, 7, 8, 9),
        (7,),
    ]
    assert [group.options for group in groups] == [
        {(92,): [1]},
        {(90, 91): [0]},
        {(93,): [2]},
    ]
    assert "2 of 3 prompts are over max_length=8 tokens" in caplog.text


@pytest.mark.parametrize("pair", [([], [1]), ([1, 2], [3] * 8)])
def test_a_prompt_without_context_is_refused(pair: tuple[list[int], list[int]]) -> None:
    with pytest.raises(InvalidInputError, match="Request 0 has"):
        group_by_context([(None, *pair)], 8)


def test_groups_stay_within_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_BRANCHES", 2)
    groups = group_by_context([(None, [1], [n]) for n in range(5)], 8)
    assert [len(group.options) for group in groups] == [2, 2, 1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"verify_certificate": False}, "SSL_CERT_FILE"),
        ({"ca_cert_path": "x.pem"}, "SSL_CERT_FILE"),
        ({"base_url": "nowhere"}, "base_url"),
        ({"num_concurrent": 0}, "max_connections"),
    ],
)
def test_settings_that_cannot_hold(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        RadixFlowLM(**{"base_url": "http://127.0.0.1:9", **settings})


def test_it_is_known_by_name() -> None:
    register()
    register()
    assert get_model("radixflow") is RadixFlowLM


def test_numbers_in_model_args_are_texts(server: Server, url: str) -> None:
    model(url, cache_salt=2547610222).loglikelihood(asked(*PAIRS), disable_tqdm=True)
    assert {r.body["cache_salt"] for r in server.requests} == {"2547610222"}


def test_a_request_that_cannot_be_scored_is_named(url: str) -> None:
    pair = ("Anna lives in Oslo.", " Oslo" * 200)
    one = Instance(
        request_type="loglikelihood",
        doc={},
        arguments=pair,
        idx=0,
        metadata=("arc", 7, 1),
    )
    with pytest.raises(InvalidInputError) as caught:
        model(url, max_length=64).loglikelihood(
            [*asked(*PAIRS), one], disable_tqdm=True
        )
    said = str(caught.value)
    assert said.startswith("Task arc, document 7, ' Oslo Oslo")
    assert "after 'Anna lives in Oslo.': Request 5 has" in said
