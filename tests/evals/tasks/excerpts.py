"""The excerpts as lm-eval's datasets: one row a question."""

import json
from pathlib import Path
from typing import Any

from datasets import Dataset

DATA = Path(__file__).parents[1] / "data"


def load(name: str, **_: Any) -> dict[str, Dataset]:
    """Questions of one file; `name` comes from the task's ``metadata``."""
    text = (DATA / f"{name}.jsonl").read_text(encoding="utf-8")
    rows = [
        {
            "document": row["document"],
            "question": question["question"],
            "options": question["options"],
            "gold": question["gold"],
        }
        for row in map(json.loads, text.rstrip("\n").split("\n"))
        for question in row["questions"]
    ]
    return {"test": Dataset.from_list(rows)}


def load_documents(**_: Any) -> dict[str, Dataset]:
    """The English and Chinese paragraphs, for perplexity."""
    text = (DATA / "xquad.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.rstrip("\n").split("\n")]
    return {"test": Dataset.from_list([{"text": row["document"]} for row in rows])}
