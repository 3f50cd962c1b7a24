"""Inspect's scorer, in an environment that has Inspect."""

import json
from pathlib import Path
from typing import Any

import pytest

from radixflow_sdk.testing import FakeServer

inspect_ai = pytest.importorskip("inspect_ai", reason="inspect_ai is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # Inspect's own, many of them


def samples() -> list[Any]:
    from inspect_ai.dataset import Sample

    return [
        Sample(
            input="Where is Anna?", choices=["Rome", "Oslo"], target="B", id="right"
        ),
        Sample(input="Where is Ben?", choices=["Oslo", "Rome"], target="B", id="wrong"),
    ]


def test_a_run_in_inspects_log(tmp_path: Path) -> None:
    from radixflow_sdk.evals.inspect import choice_likelihood, no_generation

    server = FakeServer({"Oslo": -0.1, "Rome": -3.0})
    with server.listen_in_thread() as url:
        task = inspect_ai.Task(
            dataset=samples(),
            solver=no_generation(),
            scorer=choice_likelihood(base_url=url, normalize="sum"),
        )
        [log] = inspect_ai.eval(
            task, model="mockllm/model", log_dir=str(tmp_path), display="none"
        )
    assert log.status == "success", log.error
    [metrics] = [score.metrics for score in log.results.scores]
    assert metrics["accuracy"].value == 0.5
    by_id = {sample.id: sample.scores["choice_likelihood"] for sample in log.samples}
    assert (by_id["right"].answer, by_id["wrong"].answer) == ("B", "A")
    assert by_id["right"].value == "C"
    assert by_id["right"].metadata["B"]["sum"] == pytest.approx(-0.1)
    bodies = [request.body for request in server.requests if request.body]
    documents = {body["document"]["text"] for body in bodies}
    assert documents == {
        f"Question: Where is {who}?\nAnswer:" for who in ("Anna", "Ben")
    }
    assert json.dumps(by_id["wrong"].metadata)
