"""The files that a run writes, checked before the first question is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from radixflow_sdk.evals.containers import STDIN
from radixflow_sdk.evals.report import PAGE_BEGINS
from radixflow_sdk.exceptions import InvalidInputError


def name_of(questions: Sequence[Path]) -> str:
    """What a run over these files is called."""
    if len(questions) > 1:
        return " + ".join(path.name for path in questions)
    return "stdin" if questions[0] == STDIN else questions[0].resolve().name


def results_path(questions: Sequence[Path]) -> Path:
    """Where the results of question files, or of a folder of them, go by default."""
    if len(questions) > 1:
        return Path("questions.results.jsonl")
    [file] = questions
    if file == STDIN:
        return Path("stdin.results.jsonl")
    name = file.name.removesuffix(".gz")
    stem = file.resolve().name if file.is_dir() else Path(name).stem
    return Path(f"{stem}.results.jsonl")


def check_apart(option: str, path: Path, others: Sequence[tuple[str, Path]]) -> None:
    """Refuse a path that is one of the run's other files.

    Raises:
        InvalidInputError: It is.
    """
    for what, other in others:
        if path.resolve() == other.resolve():
            raise _refused(option, path, f"that is the {what}")


def check_writable(report: Path) -> None:
    """Refuse a report that cannot be written, or would replace another kind of file.

    Raises:
        InvalidInputError: It is one.
    """
    new = not report.exists()
    try:
        with report.open("a+b") as page_before:
            page_before.seek(0)
            begins = page_before.read(len(PAGE_BEGINS)).decode("latin-1")
    except OSError as error:
        raise _refused("report", report, str(error.strerror)) from None
    if new:
        report.unlink()
    elif begins and begins != PAGE_BEGINS:
        raise InvalidInputError(
            f"report is {str(report)!r}, which is there and no page of a report; name "
            "another file.",
            field="report",
            value=str(report),
        )


def _refused(option: str, path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{option} is {str(path)!r}: {why}; name another file.",
        field=option,
        value=str(path),
    )
