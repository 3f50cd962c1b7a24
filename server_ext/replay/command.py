"""``radixflow replay``: the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from server_ext.policy.config import POLICIES
from server_ext.replay.cards import CARDS
from server_ext.replay.grid import (
    Cell,
    Folder,
    FolderError,
    Result,
    make_trace,
    run_cells,
)
from server_ext.replay.policies import ARMS, BASELINES, PAPER, PARTS
from server_ext.replay.trace import (
    ORDERS,
    QUESTIONS,
    REGIMES,
    STREAMS,
    TraceError,
    read_trace,
    write_trace,
)

__all__ = ["run"]

GRID_ARMS = tuple(arm.name for arm in (*BASELINES, *PAPER, *PARTS))
SWEEP_LOADS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
SWEEP_ARMS = ("radix-0.32", "radix-0.33", "radixflow", "tree", "radixflow+")
ARRIVALS = ("poisson", "burst", "backlog", "closed")
API_KEY = "RADIXFLOW_API_KEY"
ROUNDS_MAY_DIFFER = 0.02
"""Share of a server's rounds by which its replay may be off."""


def run(argv: Sequence[str]) -> int:
    """Run the command line.

    Args:
        argv: what follows ``radixflow replay``.

    Returns:
        0; 1 where a cell failed or a replay is not what the server did; 2 for a
        command with invalid arguments.
    """
    if argv[:1] == ["--report"]:  # the same, as an option
        argv = ["report", "--out", *argv[1:]]
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except (FolderError, TraceError, ValueError, OSError) as error:
        sys.stderr.write(f"radixflow replay: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; give the same command again to continue\n")
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="radixflow replay",
        description="Replay policies on vLLM's real scheduler in virtual time. "
        "Every latency is simulated; rounds, slots, tokens and reuse are the "
        "scheduler's own.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Any, text: str) -> Any:
        made = commands.add_parser(run.__name__.strip("_"), help=text)
        made.set_defaults(run=run)
        return made.add_argument

    add = command(_grid, "models x streams x orders x policies")
    _add_cells(add, GRID_ARMS, tuple(CARDS), QUESTIONS)
    add("--streams", type=_list, default=REGIMES, help=f"of {', '.join(STREAMS)}")
    add("--orders", type=_list, default=ORDERS)
    add("--load", type=float, default=1.0)
    add("--arrivals", choices=ARRIVALS, default="poisson")
    add("--width", type=int, default=4)

    add = command(_sweep, "latency against offered load")
    _add_cells(add, SWEEP_ARMS, ("Qwen3.5-9B",), 400)
    add("--loads", type=_numbers, default=SWEEP_LOADS)
    add("--stream", choices=STREAMS, default="mixed")

    add = command(_report, "one HTML page from a folder")
    add("--out", type=Path, required=True)
    add("--page", type=Path, help="folder of the page, else --out")
    add("--timeline", type=Path, help="write the timeline alone")

    add = command(_trace, "write a trace, or replay one")
    add("file", type=Path)
    add("--replay", metavar="POLICY", help="replay the file instead")
    add("--model", choices=tuple(CARDS), default="Qwen3.5-9B")
    add("--stream", choices=STREAMS, default="mixed")
    add("--order", choices=ORDERS, default="forward")
    add("--questions", type=int, default=QUESTIONS)
    add("--load", type=float, default=1.0)
    add("--seed", type=int, default=0)
    add("--async", dest="asynchronous", action="store_true")

    add = command(_export, "write a server's run to a file: arrivals and rounds")
    add("url", help=f"http://HOST:PORT; the key, if it wants one, in {API_KEY}")
    add("--out", type=Path, required=True, help="file to write")
    after = "begin after this round, at which the server was idle"
    add("--after", type=int, default=0, help=after)

    add = command(_served, "replay an exported run, its rounds beside the server's")
    add("file", type=Path)
    add("--policy", choices=tuple(POLICIES), help="another policy")

    command(_cards, "model cards as JSON, with derivations")

    add = command(_calibrate, "fit row_tokens and round_tokens to a server's round log")
    add(
        "rounds",
        help="http://HOST:PORT of a server under load (its key, if it wants one, in "
        f"{API_KEY}), or a file with the answer of GET /v1/radixflow/rounds",
    )
    scheduled = "the file is of a server with asynchronous scheduling"
    add("--async", dest="asynchronous", action="store_true", help=scheduled)
    return parser


def _add_cells(
    add: Any, arms: tuple[str, ...], models: tuple[str, ...], questions: int
) -> None:
    add("--out", type=Path, required=True, help="folder of results")
    add("--models", type=_list, default=models)
    add("--policies", type=_list, default=arms)
    add("--questions", type=int, default=questions)
    add("--seed", type=int, default=0)
    add("--jobs", type=int, default=1, help="processes")
    add("--async", dest="asynchronous", action="store_true", help="asynchronous engine")
    fence = "asynchronous engine and commit fence, what pipeline stages run by default"
    add("--fence", action="store_true", help=fence)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _list(text))


def _check(names: Sequence[str], known: Sequence[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: one of {', '.join(known)}")


# -- grid and sweep --------------------------------------------------------------------


def _cell(arguments: argparse.Namespace, **own: Any) -> Cell:
    """A cell with the settings that all cells of a command share."""
    return Cell(
        questions=arguments.questions,
        seed=arguments.seed,
        asynchronous=arguments.asynchronous or arguments.fence,
        fence=arguments.fence,
        **own,
    )


def _grid(arguments: argparse.Namespace) -> int:
    _check(arguments.streams, STREAMS, "stream")
    _check(arguments.orders, ORDERS, "order")
    cells = [
        _cell(
            arguments,
            model=model,
            arm=arm,
            stream=stream,
            order=order,
            arrivals=arguments.arrivals,
            load=arguments.load,
            width=arguments.width,
        )
        for order in arguments.orders
        for stream in arguments.streams
        if order == "forward" or stream != "sessions"
        for model in arguments.models
        for arm in arguments.policies
    ]
    return _run_all(cells, arguments)


def _sweep(arguments: argparse.Namespace) -> int:
    own = {"stream": arguments.stream, "own_rate": True}
    cells = [
        _cell(arguments, model=model, arm=arm, load=load, **own)
        for model in arguments.models
        for load in arguments.loads
        for arm in arguments.policies
    ]
    return _run_all(cells, arguments)


def _run_all(cells: list[Cell], arguments: argparse.Namespace) -> int:
    _check(arguments.models, tuple(CARDS), "model")
    _check(arguments.policies, tuple(ARMS), "policy")
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    folder = Folder(arguments.out)
    failed: list[str] = []
    columns = (
        TextColumn("{task.description:<44}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        here = sum(cell in folder for cell in cells)
        task = bar.add_task("replay", total=len(cells), completed=here)

        def done(result: Result) -> None:
            cell = result.cell
            if result.error:
                failed.append(f"{cell.model} {cell.arm}: {result.error}")
            what = f"{cell.model} {cell.stream} {cell.order} {cell.arm}"
            bar.update(task, advance=1, description=what[:44])

        run_cells(cells, folder, jobs=arguments.jobs, done=done)
    for sentence in failed:
        sys.stderr.write(f"failed: {sentence}\n")
    sys.stdout.write(f"{len(cells)} cells in {folder.path}\n")
    return 1 if failed else 0


# -- the others ------------------------------------------------------------------------


def _report(arguments: argparse.Namespace) -> int:
    from server_ext.replay.report import write_report, write_timeline

    if arguments.timeline is not None:
        write_timeline(arguments.timeline)
        return 0
    page = write_report(Folder(arguments.out), arguments.page or arguments.out)
    sys.stdout.write(f"{page}\n")
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    cell = Cell(
        model=arguments.model,
        arm=arguments.replay or "radix-0.33",
        stream=arguments.stream,
        order=arguments.order,
        questions=arguments.questions,
        load=arguments.load,
        seed=arguments.seed,
        asynchronous=arguments.asynchronous,
    )
    if arguments.replay is None:
        trace = make_trace(cell)
        write_trace(replace(trace, name=arguments.file.stem), arguments.file)
        sys.stdout.write(f"{len(trace.groups)} groups in {arguments.file}\n")
        return 0
    _check([arguments.replay], tuple(ARMS), "policy")
    from server_ext.replay.run import replay

    outcome = replay(
        read_trace(arguments.file),
        CARDS[arguments.model],
        ARMS[arguments.replay],
        asynchronous=arguments.asynchronous,
    )
    sys.stdout.write(json.dumps(outcome.figures.as_row(), indent=1) + "\n")
    return 0


def _cards(arguments: argparse.Namespace) -> int:
    del arguments
    cards = {name: card.as_dict() for name, card in CARDS.items()}
    sys.stdout.write(json.dumps(cards, indent=1) + "\n")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from server_ext.replay.served import recording_from, write_recording

    routes = f"{arguments.url.rstrip('/')}/v1/radixflow"
    after = arguments.after
    # Rounds last: what comes in between has rounds but no arrival, and is refused.
    arrivals = _get(f"{routes}/arrivals?after={after}")
    rounds = _get(f"{routes}/rounds?after={after}")["rounds"]
    recording = recording_from(arrivals, rounds, after=after)
    write_recording(recording, arguments.out)
    sys.stdout.write(
        f"{len(recording.requests)} requests, {len(recording.rounds)} rounds in "
        f"{arguments.out}\n"
    )
    return 0


def _get(url: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: a server's address begins with http:// or https://")
    request = urllib.request.Request(url)
    if key := os.environ.get(API_KEY):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        reason = error.read(500).decode("utf-8", "replace")
        raise ValueError(f"{url}: HTTP {error.code}: {reason}") from None
    except OSError as error:
        raise ValueError(f"{url}: {error}: is the server up?") from None


def _served(arguments: argparse.Namespace) -> int:
    from server_ext.replay.served import compare, read_recording, replay_recording

    recording = read_recording(arguments.file)
    policy = None if arguments.policy is None else POLICIES[arguments.policy]
    predicted = replay_recording(recording, policy=policy)
    result = compare(recording.rounds, predicted)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if policy is not None:
        return 0
    off = abs(result["rounds_off"])
    tokens = result["served"]["tokens"] == result["replayed"]["tokens"]
    return 0 if tokens and off <= ROUNDS_MAY_DIFFER else 1


def _calibrate(arguments: argparse.Namespace) -> int:
    from server_ext.replay.calibrate import calibrate, samples

    log, asynchronous = _round_log(arguments.rounds)
    timed = samples(log, asynchronous=asynchronous or arguments.asynchronous)
    found = calibrate(timed)
    lines = [
        f"{found.used} of {len(log)} rounds, median error {found.error * 1e3:.3g} ms",
        f"a round  {found.cost.round * 1e3:.4g} ms",
        f"a row    {found.cost.row * 1e3:.4g} ms",
        f"a token  {found.cost.token * 1e3:.4g} ms",
    ]
    for name, worth in (("row_tokens", found.row), ("round_tokens", found.round)):
        lines.append(f"{name} {worth.tokens} ({worth.low} to {worth.high})")
    sys.stdout.write("\n".join([*lines, found.option]) + "\n")
    return 0


def _round_log(source: str) -> tuple[list[Any], bool]:
    """The rounds of a file or a server, and whether they are known to be of the
    asynchronous engine."""
    asynchronous = False
    if "://" in source:
        routes = f"{source.rstrip('/')}/v1/radixflow"
        answer = _get(f"{routes}/rounds")
        settings = _get(f"{routes}/stats").get("settings") or {}
        asynchronous = bool(settings.get("async_scheduling"))
    else:
        answer = json.loads(Path(source).read_text(encoding="utf-8"))
    rounds = answer.get("rounds") if isinstance(answer, dict) else answer
    if not isinstance(rounds, list):
        raise ValueError(f"{source}: no round log: is it the RadixFlow scheduler's?")
    return rounds, asynchronous
