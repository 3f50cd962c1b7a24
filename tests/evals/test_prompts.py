"""Named templates against the prompts of lm-evaluation-harness itself."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from radixflow_sdk.evals.files import read_questions
from radixflow_sdk.evals.prompts import TEMPLATES, PromptStyle, Shots
from radixflow_sdk.evals.questions import Question
from tests.evals.test_formats import columns, hellaswag, pubmed, sciq, truthful

lm_eval = pytest.importorskip("lm_eval")
TASKS = Path(lm_eval.__file__).parent / "tasks"


def arc(number: int) -> dict[str, Any]:
    return columns(f"q{number}", "B", *"ABCD")


def openbook(number: int) -> dict[str, Any]:
    row = arc(number)
    return row | {"question_stem": row["question"]}


def commonsense(number: int) -> dict[str, Any]:
    return columns(f" q{number} ", "C", *"ABCDE")


def mmlu(number: int) -> dict[str, Any]:
    choices = [f"{letter}{number}" for letter in "wxyz"]
    return {
        "question": f" Q{number}? ",
        "subject": "law",
        "choices": choices,
        "answer": 2,
    }


def boolq(number: int) -> dict[str, Any]:
    return {
        "passage": f"P{number}.",
        "question": f"is it {number}",
        "idx": number,
        "label": 1,
    }


def piqa(number: int) -> dict[str, Any]:
    return {"goal": f"G{number}", "sol1": "one", "sol2": "two", "label": 1}


def wiki(number: int) -> dict[str, Any]:
    row = hellaswag(number, 2)
    endings = ["[step] Do  it. [title] Go", "b", f"c{number}", "d"]
    return row | {"ctx_a": f"How to {number} [title] begin", "endings": endings}


CASES = {
    "arc": ("arc/arc_easy.yaml", arc),
    "openbookqa": ("openbookqa/openbookqa.yaml", openbook),
    "hellaswag": ("hellaswag/hellaswag.yaml", wiki),
    "mmlu": ("mmlu/default/_default_template_yaml", mmlu),
    "commonsense_qa": ("commonsense_qa/default.yaml", commonsense),
    "boolq": ("super_glue/boolq/default.yaml", boolq),
    "piqa": ("piqa/piqa.yaml", piqa),
    "sciq": ("sciq/sciq.yaml", lambda n: sciq(n) | {"support": f"  S{n}."}),
    "pubmedqa": ("pubmedqa/pubmedqa.yaml", lambda n: pubmed(f"{n}", "maybe")),
    "truthfulqa_mc1": ("truthfulqa/truthfulqa_mc1.yaml", None),
}


class _Loader(yaml.SafeLoader):
    """Reads ``!function module.name`` from the module beside the task."""

    folder: Path


def _function(loader: Any, node: Any) -> Any:
    module, _, name = node.value.rpartition(".")
    spec = importlib.util.spec_from_file_location(
        module, loader.folder / f"{module}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return getattr(found, name)


def task(path: str, rows: list[dict[str, Any]], shots: int) -> Any:
    """A task of lm-eval over rows of ours, its own file apart from the data."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    file = TASKS / path

    class Loader(_Loader):
        folder = file.parent

    Loader.add_constructor("!function", _function)
    config = yaml.load(file.read_text(), Loader)
    for key in ("tag", "dataset_path", "dataset_name", "dataset_kwargs", "metadata"):
        config.pop(key, None)
    config |= {"task": "t", "test_split": "test", "fewshot_split": "train"}
    config |= {"training_split": "train", "validation_split": None}
    config |= {"fewshot_config": {"sampler": "first_n"}, "num_fewshot": shots}
    data = {"test": Dataset.from_list(rows[shots:]), "train": Dataset.from_list(rows)}
    config["custom_dataset"] = lambda **_: data
    made = ConfigurableTask(config=config)
    made.set_fewshot_seed(1)
    made.build_all_requests(rank=0, world_size=1)
    return made


def read(path: Path, rows: list[dict[str, Any]]) -> list[Question]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_questions(path)


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_template_is_lm_evals_prompt(tmp_path: Path, name: str, shots: int) -> None:
    path, make = CASES[name]
    rows = [make(n) for n in range(5)] if make else mc1()
    questions = read(tmp_path / "q.jsonl", rows)
    style = PromptStyle(words=TEMPLATES[name], shots=Shots.draw(questions, shots, None))
    wanted = [instance.args for instance in task(path, rows, shots).instances]
    found = []
    for question in questions[shots:]:
        asked = style.request(question, scoring="likelihood", unconditional=None)
        context = "".join(asked.document)
        assert context == style.text(question)
        found += [(context, f" {option}") for option in asked.options]
    assert found == wanted


def mc1() -> list[dict[str, Any]]:
    targets = {"choices": ["right", "wrong", "off"], "labels": [1, 0, 0]}
    return [
        truthful(n) | {"mc1_targets": targets, "mc2_targets": targets} for n in range(5)
    ]


def test_every_template_has_a_case() -> None:
    assert CASES.keys() == TEMPLATES.keys()
