"""One page about a run: accuracies with their intervals, and reliability diagrams.

Plain HTML and SVG in one file, nothing loaded from elsewhere. This room must not
compute a figure: `measures` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from radixflow_sdk.evals.measures import Bin, Measures
from radixflow_sdk.types import Normalize

__all__ = ["page"]

_SIZE, _LEFT, _TOP = 220, 40, 12
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #1f2328; background: #fff; }
table { border-collapse: collapse; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #d0d7de; text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { display: inline-block; margin: 1rem 1rem 0 0; }
"""


def page(title: str, told: str, measures: Mapping[Normalize, Measures]) -> str:
    """The page.

    Args:
        title: What was asked.
        told: One sentence about the run.
        measures: One entry a normaliser.
    """
    rows = "\n".join(_row(name, found) for name, found in measures.items())
    plots = "\n".join(
        f"<figure>{diagram(found)}<figcaption>{name}</figcaption></figure>"
        for name, found in measures.items()
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>
<style>{_STYLE}</style>
<h1>{escape(title)}</h1>
<p>{escape(told)}</p>
<table>
<tr><th>normaliser<th>right<th>accuracy<th>95% interval<th>tied<th>Brier<th>ECE</tr>
{rows}
</table>
<p>Intervals are Wilson's, of questions taken as independent. A diagram's bars are the
accuracy of the questions in ten bins of confidence (the softmax probability of the
picked option), as wide as the bin and as strong as its share of the questions; on the
diagonal, confidence and accuracy agree.</p>
{plots}
</html>
"""


def _row(name: str, found: Measures) -> str:
    cells = (
        name,
        f"{found.right} of {found.count}",
        f"{found.accuracy:.3f}",
        f"{found.low:.3f} to {found.high:.3f}",
        str(found.tied),
        f"{found.brier:.3f}",
        f"{found.ece:.3f}",
    )
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}</tr>"


def diagram(found: Measures) -> str:
    """A reliability diagram as an SVG element."""
    width, height = _LEFT + _SIZE + 8, _TOP + _SIZE + 40
    bottom = _TOP + _SIZE
    most = max(own.count for own in found.bins)
    bars = "".join(_bar(own, most) for own in found.bins if own.count)
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{bottom - _SIZE * share + 4:.0f}" '
        f'text-anchor="end">{share:g}</text>'
        f'<text x="{_LEFT + _SIZE * share:.0f}" y="{bottom + 16}" '
        f'text-anchor="middle">{share:g}</text>'
        for share in (0, 0.5, 1)
    )
    middle = _LEFT + _SIZE // 2
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
        "</svg>"
    )


def _bar(own: Bin, most: int) -> str:
    """A bin with questions; one that is never right is drawn as a line."""
    height = max(_SIZE * own.accuracy, 1.5)
    return (
        f'<rect x="{_LEFT + _SIZE * own.low + 1:.1f}" '
        f'y="{_TOP + _SIZE - height:.1f}" '
        f'width="{_SIZE * (own.high - own.low) - 2:.1f}" height="{height:.1f}" '
        f'fill="#2f81f7" fill-opacity="{0.25 + 0.75 * own.count / most:.2f}">'
        f"<title>{own.count} questions: confidence {own.confidence:.2f}, accuracy "
        f"{own.accuracy:.2f}</title></rect>"
    )
