"""``radixflow calibrate``: a temperature and a threshold from labeled results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from radixflow_sdk.cli._shared import NormalizeName
from radixflow_sdk.evals.calibration import Fit, Labeled, fit
from radixflow_sdk.evals.compare import read_records
from radixflow_sdk.exceptions import InvalidInputError


def calibrate(
    results: Annotated[Path, typer.Argument(help="A results file of radixflow eval.")],
    output: Annotated[
        Path | None, typer.Option(help="Write the calibration there, as JSON.")
    ] = None,
    normalizer: Annotated[NormalizeName, typer.Option()] = NormalizeName.sum,
    accuracy: Annotated[
        float,
        typer.Option(min=0, max=1, help="What answers above the threshold reach."),
    ] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Fit a temperature and an abstention threshold, and check them on the rest."""
    records = list(read_records(results).values())
    answers = []
    for record in records:
        scores = record["scores"].get(normalizer.value)
        if scores is None:
            raise InvalidInputError(
                f"normalizer is {normalizer.value!r}; the results have "
                f"{', '.join(record['scores'])}.",
                field="normalizer",
                value=normalizer.value,
            )
        document = record["doc_id"] or record["qid"]
        answers.append(Labeled(document, scores, record["gold"]))
    found = fit(
        answers,
        model=records[0]["model"] if records else "",
        normalizer=normalizer.value,
        accuracy=accuracy,
    )
    if output is not None:
        found.calibration.write(output)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _show(found)


def _show(found: Fit) -> None:
    own = found.calibration
    typer.echo(
        f"temperature {own.temperature:.3f}, fitted on {found.fitted} questions, "
        f"checked on {found.before.count} others"
    )
    table = Table("", "before", "after")
    table.add_row("-log p(right)", f"{found.nll_before:.3f}", f"{found.nll_after:.3f}")
    table.add_row("ECE", f"{found.before.ece:.3f}", f"{found.after.ece:.3f}")
    table.add_row("Brier", f"{found.before.brier:.3f}", f"{found.after.brier:.3f}")
    Console().print(table)
    if own.threshold is None:
        typer.echo(f"no confidence reaches an accuracy of {own.accuracy:g}")
        return
    typer.echo(
        f"threshold {own.threshold:.3f} for {own.accuracy:g}: {found.kept} of "
        f"{found.before.count} others reach it, {found.kept_right} of these are right"
    )
