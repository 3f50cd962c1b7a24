"""The report's page, read and driven in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from radixflow_sdk.evals.questions import Question
from radixflow_sdk.evals.report import page
from radixflow_sdk.evals.run import Results, Setup
from radixflow_sdk.evals.summary import Summary, summarize

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--virtual-time-budget=20000",
]
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def summary(folder: Path, count: int) -> Summary:
    """A run of so many questions in two subsets; every fourth is wrong, one is tied."""
    questions = [
        Question(
            qid=f"q{number}",
            doc_id="",
            document=f"Document {number} </script><b>&amp;",
            question=f"Where is {number}?",
            options=("Oslo", "Rome <i>"),
            gold=int(number % 4 == 3),
            subset=("easy", "hard")[number % 2],
        )
        for number in range(count)
    ]
    results = Results(folder / "r.jsonl", Setup(), questions)
    with results:
        for number, question in enumerate(questions):
            scores = [-1.0, -1.0 if number == 0 else -2.0 - number / count]
            results.records[question.qid] = {
                "qid": question.qid,
                "digest": "0",
                "model": "fake",
                "route": "branches",
                "gold": question.gold,
                "scores": dict.fromkeys(("sum", "mean", "char", "byte"), scores),
                "prompt_tokens": 10,
                "computed_tokens": 4,
            }
    return summarize("q.jsonl", Setup(), questions, results, total=count + 7)


def dumped(path: Path, text: str, script: str, *flags: str) -> str:
    assert CHROMIUM is not None
    path.write_text(text.replace("</html>", f"<script>{script}</script></html>"))
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *flags, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return done.stdout.partition("<title>done:")[2].partition("</title>")[0]


def test_the_setup_and_the_subsets(tmp_path: Path) -> None:
    text = page(summary(tmp_path, 8), command="radixflow eval q.jsonl")
    for wanted in (
        "8 of the first 8 of 15 questions of q.jsonl, answered by fake",
        "<th>command<td>radixflow eval q.jsonl",
        "80, of which 32 were computed (60% reused)",
        "<tr><td>easy<td>4<td>1.000 (",
        "<tr><td>hard<td>4<td>0.500 (",
    ):
        assert wanted in text, wanted
    assert text.count("</script>") == 2
    assert not re.search(r"(src|href)=", text)


def test_the_data_is_every_question(tmp_path: Path) -> None:
    text = page(summary(tmp_path, 8))
    raw = text.partition('id="data">')[2].partition("</script>")[0]
    data: Any = json.loads(raw)
    assert len(data["rows"]) == 8
    assert data["documents"][3] == "Document 3 </script><b>&amp;"
    assert data["rows"][3]["options"] == ["Oslo", "Rome <i>"]


@browser
def test_a_browser_filters_searches_and_opens(tmp_path: Path) -> None:
    script = """
    const rows = () => document.querySelectorAll("#rows details");
    const found = [rows().length];
    const set = (name, value, event) => {
      document.getElementById(name).value = value;
      document.getElementById(name).dispatchEvent(new Event(event));
    };
    document.getElementById("more").click();
    found.push(rows().length);
    set("kept", "wrong", "change");
    found.push(document.getElementById("count").textContent);
    set("subset", "easy", "change");
    found.push(rows().length);
    set("subset", "", "change");
    set("kept", "tied", "change");
    found.push(rows()[0].textContent);
    set("kept", "all", "change");
    set("search", "where is 33?", "input");
    found.push(rows().length);
    rows()[0].open = true;
    setTimeout(() => {
      found.push(rows()[0].querySelector("pre").textContent);
      found.push(rows()[0].querySelectorAll("tr").length);
      found.push(document.documentElement.scrollWidth <= innerWidth);
      document.title = "done:" + JSON.stringify(found);
    }, 500);
    """
    text = page(summary(tmp_path, 400))
    found = json.loads(
        dumped(tmp_path / "page.html", text, script, "--window-size=420,900")
    )
    first, second, wrong, easy, tied, searched, document, options, fits = found
    assert (first, second, searched, options, easy) == (50, 100, 1, 2, 0)
    assert wrong == "50 of 100 shown"
    assert tied == "q0: Where is 0?"
    assert document.startswith("Document 33 ")
    assert fits


@browser
def test_twenty_thousand_questions(tmp_path: Path) -> None:
    script = """
    document.title = "done:" + document.querySelectorAll("#rows details").length
      + "/" + document.getElementById("count").textContent;
    """
    text = page(summary(tmp_path, 20_000))
    found = dumped(tmp_path / "page.html", text, script)
    assert found == "50/50 of 20000 shown"
