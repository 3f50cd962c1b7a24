"""An HTML page about a run: setup, accuracies, diagrams, failures, every question.

Plain HTML and SVG in one file that loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from radixflow_sdk._requests import Normalize
from radixflow_sdk.evals import browse
from radixflow_sdk.evals.measures import Bin, Measures
from radixflow_sdk.evals.summary import Summary

__all__ = ["PAGE_BEGINS", "page"]

PAGE_BEGINS = "<!doctype html>"
"""How every page begins, and a file of another kind does not."""

MAX_LISTED = 50
_SHOWN = 300
_SIZE, _LEFT, _TOP = 220, 54, 16
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #1f2328; background: #fff; }
table { border-collapse: collapse; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #d0d7de; text-align: right; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
.words td { vertical-align: top; overflow-wrap: anywhere; white-space: pre-wrap; }
.wide { overflow-x: auto; }
figure { display: inline-block; margin: 1rem 1rem 0 0; max-width: 100%; }
svg { max-width: 100%; height: auto; }
"""


def page(summary: Summary, *, command: str = "") -> str:
    """The page.

    Args:
        summary: The run.
        command: The command line that made it.
    """
    measures = summary.measures
    title = escape(summary.name)
    return f"""{PAGE_BEGINS}
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}{browse.STYLE}</style>
<h1>{title}</h1>
<p>{escape(summary.headline)}; details in {escape(summary.results)}.</p>
{_setup(summary, command)}
{_figures(measures) if measures else ""}
{_subsets(summary)}
{_failures(summary)}
{browse.section(summary.answers, tuple(measures))}
</html>
"""


def _setup(summary: Summary, command: str) -> str:
    setup = summary.setup
    rows = {
        "model": summary.model or "none answered",
        "scoring": setup.scoring,
        "unconditional text": "none, so no pmi"
        if setup.unconditional is None
        else repr(setup.unconditional),
        "written": f"{summary.made:%Y-%m-%d %H:%M} UTC",
    }
    rows |= {name: str(value) for name, value in setup.style.identity().items()}
    if summary.answers:
        tokens = summary.tokens
        reused = 1 - tokens.computed / max(tokens.prompt, 1)
        rows |= {
            "route": ", ".join(summary.routes),
            "questions' digest": summary.digest,
            "tokens": f"{tokens.prompt:,}, of which {tokens.computed:,} were computed "
            f"({reused:.0%} reused)",
            "duration": f"{summary.seconds:.1f} s",
            "first prompt": setup.style.text(summary.answers[0].question),
        }
    if command:
        rows["command"] = command
    if summary.stopped is not None:
        rows["not finished"] = summary.stopped
    lines = (
        f"<tr><th>{escape(name)}<td>{escape(value)}</tr>"
        for name, value in rows.items()
    )
    return f'<table class="words">{"".join(lines)}</table>'


def _figures(measures: Mapping[Normalize, Measures]) -> str:
    rows = "\n".join(_row(name, found) for name, found in measures.items())
    plots = "\n".join(
        f"<figure>{diagram(found)}<figcaption>{name}</figcaption></figure>"
        for name, found in measures.items()
    )
    return f"""<h2>Accuracy</h2>
<div class="wide"><table>
<tr><th>normalizer<th>right<th>accuracy<th>95% interval<th>chance<th>tied<th>Brier\
<th>ECE</tr>
{rows}
</table></div>
<p>Intervals are Wilson's, of questions taken as independent. A diagram's bars are the
accuracy of the questions in ten bins of confidence (the softmax probability of the
picked option), as wide as the bin, with their number above; on the diagonal, confidence
and accuracy agree.</p>
{plots}"""


def _failures(summary: Summary) -> str:
    if not summary.failures:
        return ""
    rows = [
        f"<tr><td>{len(qids)}<td>{_text(_some(qids))}<td>{_text(reason)}</tr>"
        for reason, qids in summary.failures.items()
    ]
    return f"""<h2>{summary.failed} failed</h2>
<table class="words">
<tr><th>count<th>questions<th>why</tr>
{_listed(rows)}
</table>"""


def _subsets(summary: Summary) -> str:
    """A row for each subset, with the accuracy and interval of every normalizer."""
    if len(summary.subsets) < 2:
        return ""
    rows = "\n".join(
        f"<tr><td>{escape(name)}<td>{next(iter(own.values())).count}"
        + "".join(
            f"<td>{found.accuracy:.3f} ({found.low:.3f} to {found.high:.3f})"
            for found in own.values()
        )
        + "</tr>"
        for name, own in summary.subsets.items()
    )
    heads = "".join(f"<th>{name}" for name in summary.measures)
    return f"""<h2>Subsets</h2>
<div class="wide"><table>
<tr><th>subset<th>count{heads}</tr>
{rows}
</table></div>"""


def _some(qids: Sequence[str]) -> str:
    return ", ".join(qids[:5]) + (" ..." if len(qids) > 5 else "")


def _text(text: str) -> str:
    return escape(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _listed(rows: Sequence[str]) -> str:
    more = ["<tr><td>...</tr>"] if len(rows) > MAX_LISTED else []
    return "\n".join([*rows[:MAX_LISTED], *more])


def _row(name: str, found: Measures) -> str:
    cells = (
        name,
        f"{found.right} of {found.count}",
        f"{found.accuracy:.3f}",
        f"{found.low:.3f} to {found.high:.3f}",
        f"{found.chance:.3f}",
        str(found.tied),
        f"{found.brier:.3f}",
        f"{found.ece:.3f}",
    )
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}</tr>"


def diagram(found: Measures) -> str:
    """A reliability diagram as an SVG element."""
    width, height = _LEFT + _SIZE + 8, _TOP + _SIZE + 40
    bottom = _TOP + _SIZE
    bars = "".join(_bar(own) for own in found.bins if own.count)
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{bottom - _SIZE * share + 4:.0f}" '
        f'text-anchor="end">{share:g}</text>'
        f'<text x="{_LEFT + _SIZE * share:.0f}" y="{bottom + 16}" '
        f'text-anchor="middle">{share:g}</text>'
        for share in (0, 0.5, 1)
    )
    middle, half = _LEFT + _SIZE // 2, _TOP + _SIZE // 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-size="12" '
        'font-family="system-ui, sans-serif" fill="#57606a">'
        f"<title>Accuracy by confidence; ECE {found.ece:.3f}</title>"
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}" fill="none" '
        'stroke="#d0d7de"/>'
        f"{bars}"
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _SIZE}" y2="{_TOP}" '
        'stroke="#57606a" stroke-dasharray="4 3"/>'
        f"{ticks}"
        f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">confidence</text>'
        f'<text x="14" y="{half}" transform="rotate(-90 14 {half})" '
        'text-anchor="middle">accuracy</text>'
        "</svg>"
    )


def _bar(own: Bin) -> str:
    """A bin with questions, and how many; one that is never right is a line."""
    height = max(_SIZE * own.accuracy, 1.5)
    left, top = _LEFT + _SIZE * own.low + 1, _TOP + _SIZE - height
    width = _SIZE * (own.high - own.low) - 2
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" fill="#2f81f7" fill-opacity=".6">'
        f"<title>{own.count} questions: confidence {own.confidence:.2f}, accuracy "
        f"{own.accuracy:.2f}</title></rect>"
        f'<text x="{left + width / 2:.1f}" y="{top - 3:.1f}" font-size="8" '
        f'text-anchor="middle">{own.count}</text>'
    )
