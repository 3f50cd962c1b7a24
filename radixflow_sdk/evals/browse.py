"""The part of a report that lists every question: data as JSON, and its script.

The page loads nothing. Rows are made when they are shown, 50 at a time, so that 20,000
questions do not slow the page down.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from radixflow_sdk._requests import Normalize
from radixflow_sdk.evals.questions import Question
from radixflow_sdk.evals.summary import Answer

__all__ = ["STYLE", "section"]

MAX_TEXT = 5000
"""Characters of a document that are in the page."""
DIGITS = 5

STYLE = """\
#browse .tools { display: flex; flex-wrap: wrap; gap: .5rem; margin: .5rem 0; }
#browse select, #browse input, #browse button { font: inherit; padding: .2rem .4rem; }
#browse input { flex: 1 1 8rem; min-width: 0; }
#browse details { border-bottom: 1px solid #d0d7de; padding: .3rem 0; }
#browse summary { cursor: pointer; overflow-wrap: anywhere; }
#browse pre { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 20rem;
              overflow-y: auto; background: #f6f8fa; padding: .5rem; }
#browse table { width: 100%; }
#browse td:first-child { overflow-wrap: anywhere; }
#browse .gold { font-weight: 600; }
#browse .bar { background: #2f81f799; height: .6rem; }
#browse .right::before { content: "\\2713 "; color: #1a7f37; }
#browse .wrong::before { content: "\\2717 "; color: #cf222e; }
"""

_SCRIPT = """\
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const field = name => document.getElementById(name);
const PAGE = 50;
let shown = [], count = 0;

function ranked(row) {
  const scores = row.scores[field("under").value];
  const top = Math.max(...scores);
  const weights = scores.map(score => Math.exp(score - top));
  const sum = weights.reduce((a, b) => a + b, 0);
  const probabilities = weights.map(weight => weight / sum);
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a] || a - b);
  return {scores, probabilities, order, picked: order[0],
          tied: scores[order[0]] === scores[order[1]],
          margin: probabilities[order[0]] - probabilities[order[1]]};
}

const KEPT = {
  all: () => true,
  wrong: (row, own) => own.picked !== row.gold,
  right: (row, own) => own.picked === row.gold,
  close: (row, own) => own.margin < 0.1,
  tied: (row, own) => own.tied,
};
const ORDERS = {
  file: (a, b) => a.at - b.at,
  margin: (a, b) => a.own.margin - b.own.margin || a.at - b.at,
  gold: (a, b) => a.own.probabilities[a.row.gold] - b.own.probabilities[b.row.gold]
    || a.at - b.at,
};

function choose() {
  const kept = KEPT[field("kept").value], subset = field("subset").value;
  const words = field("search").value.toLowerCase();
  shown = [];
  data.rows.forEach((row, at) => {
    if (subset && row.subset !== subset) return;
    if (words && !row.text.includes(words)) return;
    const own = ranked(row);
    if (kept(row, own)) shown.push({row, own, at});
  });
  shown.sort(ORDERS[field("order").value]);
  count = 0;
  field("rows").replaceChildren();
  more();
}

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function details({row, own}) {
  const made = element("details");
  const hit = own.picked === row.gold;
  made.append(element("summary", row.qid + ": " + (row.question
    || row.options[row.gold]), hit ? "right" : "wrong"));
  made.addEventListener("toggle", () => {
    if (made.childElementCount > 1) return;
    const document_ = data.documents[row.document];
    if (document_) made.append(element("pre", document_));
    if (row.question) made.append(element("p", row.question));
    const table = element("table");
    for (const place of own.order) {
      const line = element("tr", undefined, place === row.gold ? "gold" : "");
      const mark = place === row.gold ? " (right)" : "";
      line.append(element("td", row.options[place] + mark));
      line.append(element("td", own.scores[place].toFixed(3)));
      line.append(element("td", own.probabilities[place].toFixed(3)));
      const cell = element("td"), bar = element("div", undefined, "bar");
      bar.style.width = 100 * own.probabilities[place] + "%";
      cell.style.width = "25%";
      cell.append(bar);
      line.append(cell);
      table.append(line);
    }
    made.append(table);
  });
  return made;
}

function more() {
  field("rows").append(...shown.slice(count, count + PAGE).map(details));
  count = Math.min(count + PAGE, shown.length);
  field("count").textContent = `${count} of ${shown.length} shown`;
  field("more").hidden = count === shown.length;
}

for (const row of data.rows) {
  row.text = [row.qid, row.question, ...row.options].join("\\n").toLowerCase();
}
for (const name of ["under", "kept", "subset", "order"]) {
  field(name).addEventListener("change", choose);
}
field("search").addEventListener("input", choose);
field("more").addEventListener("click", more);
choose();
"""


def section(answers: Sequence[Answer], normalizers: Sequence[Normalize]) -> str:
    """The list of all answered questions as HTML; empty where there is none."""
    if not answers:
        return ""
    subsets = dict.fromkeys(answer.question.subset for answer in answers)
    chosen = "".join(f"<option>{name}</option>" for name in normalizers)
    every = "".join(
        f"<option>{_safe(name)}</option>" for name in subsets if len(subsets) > 1
    )
    return f"""<section id="browse"><h2>Questions</h2>
<div class="tools">
<select id="under" aria-label="Normalizer">{chosen}</select>
<select id="kept" aria-label="Which">
<option value="all">all</option><option value="wrong">wrong</option>
<option value="right">right</option><option value="close">close (under 0.1)</option>
<option value="tied">tied</option></select>
<select id="subset" aria-label="Subset"{"" if every else " hidden"}>
<option value="">every subset</option>{every}</select>
<select id="order" aria-label="Order">
<option value="file">in the file's order</option>
<option value="margin">closest first</option>
<option value="gold">least probable right option first</option></select>
<input id="search" type="search" placeholder="search" aria-label="Search">
</div>
<p id="count"></p><div id="rows"></div>
<button id="more" type="button">more</button>
<script type="application/json" id="data">{_safe(json.dumps(_data(answers)))}</script>
<script>{_SCRIPT}</script>
</section>"""


def _data(answers: Sequence[Answer]) -> dict[str, Any]:
    """What the script reads; each document once."""
    documents: dict[str, int] = {}
    rows = [
        {
            "qid": answer.question.qid,
            "subset": answer.question.subset,
            "document": documents.setdefault(
                _document(answer.question), len(documents)
            ),
            "question": answer.question.question,
            "options": answer.question.options,
            "gold": answer.question.gold,
            "scores": {
                name: [round(score, DIGITS) for score in scores]
                for name, scores in answer.record["scores"].items()
            },
        }
        for answer in answers
    ]
    return {"documents": list(documents), "rows": rows}


def _document(question: Question) -> str:
    text = "".join(question.document)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} …"


def _safe(text: str) -> str:
    """JSON or text that ends no element; in JSON the escape is the same character."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c")
