"""What finding the token boundary costs, and whether it is lm-eval's to the bit.

Cost: a document of 100 kB with 64 options against encoding the document once, for each
tokenizer.  Check: with ``--data FOLDER``, every option of every question in the
folder's files (one document a line: ``document`` and ``questions``, each with
``question`` and ``options``) is encoded as the server does and as
lm-evaluation-harness's ``_encode_pair`` does, and the token ids are compared.

    python -m benchmarks.tokenising
    python -m benchmarks.tokenising --data FOLDER --tokenizer NAME=PATH ...

Tokenizers: those of the tests, and any folder or ``tokenizer.json`` that is named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._harness import Claim, write_results
from examples.reading import make_document
from server_ext.api.protocol import BranchesRequest, RequestRefused
from server_ext.api.tokens import GroupPrompts, group_prompts
from tests.server.real_tokenizers import NAMES, tokenizer_named

BYTES = 100_000
OPTIONS = 64
RUNS = 9
MOST = 1.5
ASKED = ("\n\nQuestion: {}\nAnswer:", " {}")
# Words between document and option, and before an option: with a question, with blanks
# that move into the option, and with nothing at all between (Chinese, Thai).
FORMS = (ASKED, ("\n\n{}\n", "{}"), ("", "{}"))
LONG = 20_000
"""Documents of so many characters are checked in the first form only."""


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


def expected(tokenizer: Any, context: str, options: list[str]) -> list[Any]:
    """``LM._encode_pair`` of lm-evaluation-harness 0.4.13, each context encoded once.

    Returns:
        For each option (prompt, number of context tokens).
    """
    kept = context.rstrip()
    before = len(encode(tokenizer, kept))
    moved = context[len(kept) :]
    return [(encode(tokenizer, kept + moved + each), before) for each in options]


def ask(document: str, question: str, options: list[str]) -> BranchesRequest:
    return BranchesRequest.model_validate(
        {
            "document": {"text": document},
            "question": question or None,
            "branches": [{"text": option} for option in options],
        }
    )


def made(tokenizer: Any, request: BranchesRequest) -> GroupPrompts:
    return group_prompts(
        request,
        tokenizer,
        vocabulary=2**31,
        limit=2**31,
    )


def check_group(
    tokenizer: Any, document: str, question: str, options: list[str]
) -> dict[str, int]:
    """How many options have other tokens, none of their own, a smaller boundary."""
    found = dict.fromkeys(("options", "differ", "empty", "shrunk"), 0)
    wanted = expected(tokenizer, document + question, options)
    usable = [i for i, (whole, before) in enumerate(wanted) if len(whole) > before]
    found["options"], found["empty"] = len(options), len(options) - len(usable)
    for index in set(range(len(options))) - set(usable):
        try:
            made(tokenizer, ask(document, question, [options[index]]))
        except RequestRefused as refused:
            found["differ"] += refused.code != "empty_branch"
        else:
            found["differ"] += 1
    if not usable:
        return found
    group = made(tokenizer, ask(document, question, [options[i] for i in usable]))
    for place, index in enumerate(usable):
        whole, before = wanted[index]
        branch = group.branches[place]
        same = group.prompt(place) == whole and branch.scored_from == before
        same = same and group.context[: group.shared_tokens] == tuple(
            whole[: group.shared_tokens]
        )
        found["differ"] += not same
        found["shrunk"] += branch.keep < before
    return found


def check(name: str, tokenizer: Any, path: Path, most: int | None) -> dict[str, Any]:
    """One file, in every form."""
    total = dict.fromkeys(("options", "differ", "empty", "shrunk"), 0)
    for document, question, options in islice(groups(path), most):
        for between, offer in FORMS if len(document) < LONG else FORMS[:1]:
            found = check_group(
                tokenizer,
                document,
                between.format(question),
                [offer.format(option) for option in options],
            )
            for key, value in found.items():
                total[key] += value
    return {"tokenizer": name, "file": path.name, **total}


def groups(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            for asked in one["questions"]:
                yield one["document"], asked["question"], asked["options"]


def cost(name: str, tokenizer: Any) -> dict[str, Any]:
    """Seconds for the document alone, and for a whole group on it."""
    text, seed = "", 0
    while len(text.encode()) < BYTES:
        text += make_document(seed=seed, facts=40, questions=1).text + "\n\n"
        seed += 1
    document = text.encode()[:BYTES].decode()
    between, offer = ASKED
    options = [offer.format(f"option number {n} of many") for n in range(OPTIONS)]
    request = ask(document, between.format("Where does Anna live?"), options)
    alone = partial(encode, tokenizer, document)
    group = partial(made, tokenizer, request)
    alone(), group()
    runs = [(seconds(alone), seconds(group)) for _ in range(RUNS)]
    return {
        "tokenizer": name,
        "bytes": BYTES,
        "options": OPTIONS,
        "document_tokens": len(alone()),
        "document_s": statistics.median(run[0] for run in runs),
        "group_s": statistics.median(run[1] for run in runs),
        "ratio": statistics.median(whole / one for one, whole in runs),
    }


def seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def load(path: str) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if path.endswith(".json"):
        return PreTrainedTokenizerFast(tokenizer_file=path)
    return AutoTokenizer.from_pretrained(path)


def main() -> None:
    """Run, print and keep the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of .jsonl files to check")
    parser.add_argument("--most", type=int, help="questions a file, for a quick look")
    parser.add_argument("--tokenizer", action="append", default=[], metavar="NAME=PATH")
    arguments = parser.parse_args()
    tokenizers = {name: tokenizer_named(name) for name in NAMES if name != "smollm2"}
    for given in arguments.tokenizer:
        name, _, path = given.partition("=")
        tokenizers[name] = load(path)
    console = Console()
    raw = [cost(name, tokenizer) for name, tokenizer in tokenizers.items()]
    table = Table("tokenizer", "document", "64 options on it", "ratio")
    for run in raw:
        row = f"{run['document_s']:.3f} s", f"{run['group_s']:.3f} s"
        table.add_row(run["tokenizer"], *row, f"{run['ratio']:.2f}")
    console.print(table)
    claims = [
        Claim(f"{r['tokenizer']}: group / document", r["ratio"], "x", MOST, "<=")
        for r in raw
    ]
    files = sorted(arguments.data.glob("*.jsonl")) if arguments.data else []
    for name, tokenizer in tokenizers.items():
        for path in files:
            raw.append(check(name, tokenizer, path, arguments.most))
            console.print(raw[-1])
        if files:
            off = sum(
                run["differ"]
                for run in raw
                if run["tokenizer"] == name and "file" in run
            )
            claims.append(Claim(f"{name}: options with other tokens", off, "", 0, "<="))
    # The paths are this machine's own.
    words = ["python -m benchmarks.tokenising", *(["--data FOLDER"] if files else [])]
    named = [
        f"--tokenizer {each.partition('=')[0]}=PATH" for each in arguments.tokenizer
    ]
    command = " ".join([*words, *named])
    write_results("tokenising", command=command, raw=raw, claims=claims)


if __name__ == "__main__":
    main()
