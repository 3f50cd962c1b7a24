"""Write data/smollm2_reference.json: what transformers says, in float32.

    python tests/evals/make_smollm2_reference.py        # some minutes

For every option of every question of the excerpts: its token ids (lm-eval's boundary
rule, written here once more and apart from the server's) and their log-probabilities;
each context is run once. The server's scores are held to these figures.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.smollm2 import FOLDER, cached_checkpoint

DATA = Path(__file__).parent / "data"
FILES = ("musr", "pubmedqa", "xquad")


def questions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Context up to the answer, and the question."""
    for name in FILES:
        text = (DATA / f"{name}.jsonl").read_text(encoding="utf-8")
        for row in map(json.loads, text.rstrip("\n").split("\n")):
            for question in row["questions"]:
                asked = f"\n\nQuestion: {question['question']}\nAnswer:"
                yield row["document"] + asked, question


def main() -> None:
    """Run every option."""
    folder = cached_checkpoint()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    found: dict[str, Any] = {}
    for context, question in questions():
        before = tokenizer(context, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            read = model(torch.tensor([before]), logits_to_keep=1, use_cache=True)
        rows = []
        for option in question["options"]:
            whole = tokenizer(f"{context} {option}", add_special_tokens=False)
            scored = whole["input_ids"][len(before) :]
            with torch.inference_mode():
                state = copy.deepcopy(read.past_key_values)
                more = model(torch.tensor([scored]), past_key_values=state)
                logits = torch.cat([read.logits[0], more.logits[0, :-1]]).double()
            picked = logits.log_softmax(-1).gather(1, torch.tensor([scored]).T)
            rows.append([scored, [round(value, 5) for value in picked[:, 0].tolist()]])
        found[question["qid"]] = rows
        print(question["qid"], flush=True)  # noqa: T201
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    head = json.dumps({"model": FOLDER, "dtype": "float32", "versions": versions})
    lines = [f"{json.dumps(qid)}: {json.dumps(rows)}" for qid, rows in found.items()]
    text = f'{head[:-1]}, "options": {{\n' + ",\n".join(lines) + "\n}}\n"
    (DATA / "smollm2_reference.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
