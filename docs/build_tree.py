"""Draw the prefix tree of docs/how-it-works.md: `python docs/build_tree.py`.

Runs the scheduler's own `PrefixTree` on nine branches and writes docs/tree.svg: what
the tree holds after the first planned stop. A test fails when the picture is out of
date.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from server_ext.policy.tree import KEY_BYTES, Point, PrefixTree

PICTURE = Path(__file__).with_name("tree.svg")
UNIT = 16
PARTS = {
    "system prompt": 12,
    "shots": 40,
    "document A": 64,
    "document B": 48,
    "question 1": 3,
    "question 2": 3,
    "question 3": 3,
}
"""Match units of 16 tokens in each part of a prompt."""
BRANCHES = {
    "A1a": ("system prompt", "shots", "document A", "question 1", "option a"),
    "A1b": ("system prompt", "shots", "document A", "question 1", "option b"),
    "A1c": ("system prompt", "shots", "document A", "question 1", "option c"),
    "A2a": ("system prompt", "shots", "document A", "question 2", "option a"),
    "A2b": ("system prompt", "shots", "document A", "question 2", "option b"),
    "B3a": ("system prompt", "shots", "document B", "question 3", "option a"),
    "B3b": ("system prompt", "shots", "document B", "question 3", "option b"),
    "B3c": ("system prompt", "shots", "document B", "question 3", "option c"),
    "chat": ("system prompt", "message"),
}


@dataclass
class State:
    """The tree, and what each branch does in the round that is drawn."""

    tree: PrefixTree
    names: dict[Point, str] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    waits_at: dict[str, Point] = field(default_factory=dict)


def keys(path: tuple[str, ...]) -> bytes:
    """Prefix keys of a prompt: equal exactly where two prompts are equal."""
    found, name = b"", ""
    for part in path:
        name += f"/{part}"
        for unit in range(PARTS.get(part, 1)):
            text = f"{name}|{unit}".encode()
            found += blake2b(text, digest_size=KEY_BYTES).digest()
    return found


def run() -> State:
    """All branches arrive; the first computes up to its first planned stop."""
    state = State(PrefixTree(UNIT, rows=16, row_tokens=16, round_tokens=256))
    tree = state.tree
    for name, path in BRANCHES.items():
        tree.add(name, keys(path))
    leader = next(iter(BRANCHES))
    assert tree.blocking_point(leader) is None
    tree.admitted(leader, 0)
    ends = [0]
    while not ends[-1] or ends[-1] < PARTS["system prompt"] + PARTS["shots"]:
        ends.append(tree.next_stop(leader, ends[-1]))
        tree.advanced(leader, ends[-1], published=True)
    state.computed[leader] = ends[-1]
    for name in BRANCHES:
        if name == leader:
            continue
        point = tree.blocking_point(name)
        if point is not None:
            state.waits_at[name] = point
        else:
            hit = tree.published_depth(name)
            tree.admitted(name, hit)
            state.computed[name] = hit
    for name, path in BRANCHES.items():
        for point in _above(tree.end_of(name)):
            state.names[point] = _name(path, point)
    return state


def _name(path: tuple[str, ...], point: Point) -> str:
    """The parts that end on the edge to a point: more than one where none parts."""
    assert point.parent is not None
    names, end = [], 0
    for part in path:
        end += PARTS.get(part, 1)
        if point.parent.depth < end <= point.depth:
            names.append(part)
    return " + ".join(names)


# --- the picture ----------------------------------------------------------------------

LEFT, TOP, ROW, WIDTH = 16, 78, 32, 1000
SCALE, SHORTEST, LETTER, BEND = 2.2, 76, 7.0, 26
STYLE = """\
<style>
  text { fill: #24292f } .quiet { fill: #57606a } line, path { stroke: #8c959f }
  .published { fill: #1a7f37 } .led { fill: #fff; stroke: #0969da; stroke-width: 3 }
  .open { fill: #fff; stroke: #8c959f; stroke-width: 2 }
  .runs { fill: #0969da } .waits { fill: #9a6700 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .quiet { fill: #9198a1 } line, path { stroke: #6e7681 }
    .published { fill: #3fb950 } .led { fill: #0d1117; stroke: #4493f8 }
    .open { fill: #0d1117; stroke: #6e7681 }
    .runs { fill: #4493f8 } .waits { fill: #d29922 }
  }
</style>"""


def build() -> str:
    """The picture as SVG."""
    state = run()
    places = _layout(state)
    height = TOP + ROW * len(BRANCHES) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f"<title>A prefix tree of {len(BRANCHES)} branches in the round after the "
        "first checkpoints</title>",
        STYLE,
        *_legend(),
    ]
    for point, (x, y) in places.items():
        if point.parent is not None:
            parts += _edge(state, point, places[point.parent], (x, y))
    for point, (x, y) in places.items():
        kind = "open"
        if point.published:
            kind = "published"
        elif point.leader is not None and point.children:
            kind = "led"
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" class="{kind}"/>')
    for name in BRANCHES:
        point = state.tree.end_of(name)
        parts += _branch(state, name, *places[point])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _layout(state: State) -> dict[Point, tuple[float, float]]:
    """Depth to the right, one line per branch; a point is level with its children."""
    places: dict[Point, tuple[float, float]] = {}
    lines = iter(range(len(BRANCHES)))

    def place(point: Point, x: float) -> float:
        below = [
            place(child, x + _length(state, child)) for child in point.children.values()
        ]
        y = sum(below) / len(below) if below else TOP + ROW * (next(lines) + 0.5)
        places[point] = x, y
        return y

    place(state.tree.root, LEFT + 6)
    return dict(reversed(places.items()))


def _length(state: State, point: Point) -> float:
    """Width of the edge to a point: by its units, and its name has to fit."""
    assert point.parent is not None
    if not point.children:
        return SHORTEST
    name = BEND + 10 + LETTER * len(state.names[point])
    return max(SHORTEST, name, SCALE * (point.depth - point.parent.depth))


def _legend() -> list[str]:
    marks = (
        ("published", "checkpoint: published, requests resume here"),
        ("led", "led: one request computes it first"),
        ("open", "no checkpoint, nobody leads"),
    )
    parts = []
    x = LEFT + 6
    for kind, words in marks:
        parts.append(f'<circle cx="{x}" cy="18" r="6" class="{kind}"/>')
        parts.append(f'<text x="{x + 14}" y="23">{words}</text>')
        x += 40 + round(6.6 * len(words))
    parts.append(
        f'<text x="{LEFT}" y="50"><tspan class="runs">runs</tspan>: in this round'
        '<tspan dx="24" class="waits">waits</tspan>: until the named point is '
        "published; a request that waits leads nowhere</text>"
    )
    return parts


def _edge(
    state: State, point: Point, start: tuple[float, float], end: tuple[float, float]
) -> list[str]:
    (x, y), (right, level) = start, end
    bend = x + BEND
    parts = [
        f'<path d="M{x:.0f} {y:.0f} L{bend:.0f} {level:.0f} H{right:.0f}" '
        'fill="none" stroke-width="2"/>'
    ]
    name = state.names.get(point, "")
    if point.children:
        tokens = (point.depth - point.parent.depth) * UNIT if point.parent else 0
        middle = (bend + right) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{level - 8:.0f}" text-anchor="middle">'
            f"{name}</text>"
        )
        parts.append(
            f'<text x="{middle:.0f}" y="{level + 17:.0f}" text-anchor="middle" '
            f'class="quiet" font-size="11">{tokens:,}</text>'
        )
    return parts


def _branch(state: State, name: str, x: float, y: float) -> list[str]:
    option = BRANCHES[name][-1]
    if name in state.waits_at:
        what = f"waits at {state.names[state.waits_at[name]]}"
        kind = "waits"
    else:
        at = state.computed[name]
        what, kind = f"runs from token {at * UNIT:,}", "runs"
    led = [
        state.names[point]
        for point in _above(state.tree.end_of(name))
        if point.leader == name and point.children
    ]
    if led:
        what += ", leads " + " and ".join(led)
    return [
        f'<text x="{x + 14:.0f}" y="{y + 4:.0f}">{option}: '
        f'<tspan class="{kind}">{what}</tspan></text>'
    ]


def _above(point: Point) -> list[Point]:
    path = []
    while point.parent is not None:
        path.append(point)
        point = point.parent
    return path[::-1]


if __name__ == "__main__":
    PICTURE.write_text(build(), encoding="utf-8")
