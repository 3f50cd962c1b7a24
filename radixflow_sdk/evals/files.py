"""Reads question files: every format and container, all mistakes together.

What cannot be scored, or would give a wrong accuracy, is refused with its file and
line. What is only odd is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from radixflow_sdk.evals import containers
from radixflow_sdk.evals.containers import RESULTS_KEY, STDIN, SUFFIXES, UnreadableError
from radixflow_sdk.evals.formats import OURS, Format, choose, describe_unknown
from radixflow_sdk.evals.questions import Question, oddities
from radixflow_sdk.exceptions import InvalidInputError

__all__ = ["RESULTS_KEY", "Question", "read_questions"]

MAX_MISTAKES = 20

Warn = Callable[[str], None]


def read_questions(
    paths: Path | Sequence[Path],
    *,
    reads: Format | None = None,
    warn: Warn = lambda why: None,
) -> list[Question]:
    """Every question of files, or of a folder's files in order of their names.

    A folder's results files are left out. Where there are several files, each one's
    name is the subset of its questions.

    Args:
        paths: Files or folders; ``-`` is standard input.
        reads: The format; None: recognized for each row by its keys.
        warn: Called with a sentence for what is odd and counts all the same.

    Raises:
        InvalidInputError: Something cannot be read or scored, has no answer, or is
            there twice; the first 20 different mistakes are named.
    """
    given = [paths] if isinstance(paths, Path) else list(paths)
    files: list[tuple[Path, str]] = []
    for path in given:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if _is_asked(file))
            files += [(file, file.relative_to(path).as_posix()) for file in inside]
        else:
            files.append((path, "stdin" if path == STDIN else path.name))
    reading = _Reading(reads, warn)
    for file, name in files:
        reading.read(file, name=name, subset=_stem(name) if len(files) > 1 else "")
    return reading.end(given)


def _is_asked(file: Path) -> bool:
    named = file.name.endswith(SUFFIXES)
    return named and file.is_file() and not containers.is_results(file)


def _stem(name: str) -> str:
    ending = next((suffix for suffix in SUFFIXES[::-1] if name.endswith(suffix)), "")
    return name.removesuffix(ending)


class _Reading:
    """What was found so far, and what was wrong with it."""

    def __init__(self, reads: Format | None, warn: Warn) -> None:
        self._reads = reads
        self._warn = warn
        self._found: dict[str, Question] = {}
        self._asked: dict[object, str] = {}
        self._mistakes: dict[str, list[str]] = {}
        self._blanks: list[str] = []

    def read(self, file: Path, *, name: str, subset: str) -> None:
        """Read one file.

        Args:
            file: Where it is.
            name: Names its questions that have no name of their own: the same from
                wherever the file is read.
            subset: The subset of its questions.
        """
        begun = False
        try:
            with closing(containers.rows(file)) as rows:
                for row in rows:
                    place = f"{file}:{row.number}"
                    if not isinstance(row.value, ValueError):
                        begun = True
                        self._take(place, row.value, f"{name}:{row.number}", subset)
                        continue
                    self._refuse(place, str(row.value))
                    if not begun:
                        return  # another kind of file: its other lines say no more
        except OSError as error:
            self._refuse(str(file), error.strerror or "cannot be read")
        except (EOFError, UnreadableError) as error:
            self._refuse(str(file), str(error))

    def end(self, paths: Sequence[Path]) -> list[Question]:
        """All questions.

        Raises:
            InvalidInputError: There was a mistake, or there is no question.
        """
        if not self._found and not self._mistakes:
            where = ", ".join(map(str, paths))
            self._refuse(where, f"holds no question ({', '.join(SUFFIXES)} files)")
        if self._mistakes:
            raise self._error()
        if self._blanks:
            count, first = len(self._blanks), self._blanks[0]
            self._warn(
                f"{first}: options begin with a blank, and the template adds one "
                f"({count} question{'s' * (count > 1)})"
            )
        return list(self._found.values())

    def _take(
        self, place: str, value: Mapping[str, Any], default: str, subset: str
    ) -> None:
        reads = self._reads or choose(value)
        if reads is None and "question" in value and "options" in value:
            reads = OURS  # ours without its gold: the mistake says so
        if reads is None and "questions" in value:
            reads = OURS
        if reads is None:
            self._refuse(place, describe_unknown(value))
            return
        try:
            makers = reads.read(value, default)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(place, _reason(error, reads))
            return
        for number, make in enumerate(makers):
            where = place if len(makers) == 1 else f"{place}, question {number + 1}"
            try:
                self._keep(where, replace(make(), subset=subset, row=value))
            except (KeyError, TypeError, ValueError) as error:
                self._refuse(where, _reason(error, reads))

    def _keep(self, where: str, question: Question) -> None:
        before = self._found.get(question.qid)
        if before is not None and before.subset != question.subset:
            question = replace(question, qid=f"{question.subset}/{question.qid}")
        if question.qid in self._found:
            raise ValueError(f"question {question.qid!r} is there twice")
        self._found[question.qid] = question
        for why in oddities(question):
            self._warn(f"{where}: {why}")
        if any(o[:1].isspace() and o.strip() for o in question.options):
            self._blanks.append(where)
        asked = ("".join(question.document), question.question, question.options)
        first = self._asked.setdefault(asked, question.qid)
        if first != question.qid:
            self._warn(f"{where}: the same as question {first!r}, and counts twice")

    def _refuse(self, place: str, why: str) -> None:
        self._mistakes.setdefault(why.removesuffix("."), []).append(place)
        if len(self._mistakes) == MAX_MISTAKES:
            raise self._error()

    def _error(self) -> InvalidInputError:
        lines = [f"{_places(places)}: {why}" for why, places in self._mistakes.items()]
        text = f"{lines[0]}."
        if len(lines) > 1:
            count = sum(map(len, self._mistakes.values()))
            full = len(lines) == MAX_MISTAKES
            end = "; the rest was not read" if full else ""
            text = "\n  ".join([f"{count} mistakes{end}:", *lines])
        first = next(iter(self._mistakes.values()))[0]
        return InvalidInputError(text, field="file", value=first)


def _places(places: Sequence[str]) -> str:
    """Where a mistake is: its place, or the first and last with their number."""
    first, last = places[0], places[-1]
    if len(places) == 1:
        return first
    file, _, line = last.rpartition(":")
    to = line if first.startswith(f"{file}:") else last
    return f"{first} to {to} ({len(places)} times)"


def _reason(error: Exception, kind: Format) -> str:
    if isinstance(error, KeyError):
        return f"has no {error}; a row of {kind.name} holds {kind.holds}"
    return str(error)
