"""Write docs/api.md from the SDK's docstrings: `python docs/build_api.py`.

The docstrings are the reference; this only sets them as Markdown. A test fails when
the page is out of date.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import radixflow_sdk
from radixflow_sdk import exceptions, testing

PAGE = Path(__file__).with_name("api.md")
HEAD = """\
# API reference

Written by `docs/build_api.py` from the docstrings. `radixflow_sdk` has all
names but those of `radixflow_sdk.testing`. What the scores mean: [scoring](scoring.md).
"""
CLIENTS = ("RadixFlowClient", "RadixFlow")
SETTINGS = ("Timeouts", "RetryPolicy", "Template", "Transport")
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")


def build() -> str:
    """The whole page."""
    errors = [n for n in radixflow_sdk.__all__ if hasattr(exceptions, n)]
    known = {*CLIENTS, *SETTINGS, *errors}
    results = [n for n in radixflow_sdk.__all__ if n not in known]
    tree = inspect.cleandoc(str(exceptions.__doc__)).split("\n\n")[1]
    parts = [
        HEAD,
        *_chapter("Clients", radixflow_sdk, CLIENTS),
        *_chapter("Settings", radixflow_sdk, SETTINGS),
        *_chapter("Results", radixflow_sdk, results),
        "## Errors\n",
        f"```text\n{inspect.cleandoc(tree)}\n```\n",
        *_entries(radixflow_sdk, errors),
        *_chapter("Testing: `radixflow_sdk.testing`", testing, testing.__all__),
    ]
    return "\n".join(parts)


def _chapter(title: str, module: Any, names: Any) -> Iterator[str]:
    yield f"## {title}\n"
    yield from _entries(module, names)


def _entries(module: Any, names: Any) -> Iterator[str]:
    for name in names:
        value = getattr(module, name)
        yield f"### {name}\n"
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        if not is_error and not getattr(value, "_is_protocol", False):
            yield f"```python\n{_signature(name, value)}\n```\n"
        yield _markdown(value.__doc__)
        for method, function in _methods(value):
            yield f"#### {name}.{method}\n"
            if twin := _twin(name, method, function):
                yield f"As `{twin}`, without `await`.\n"
                continue
            if isinstance(function, property):
                yield _markdown(function.__doc__)
            else:
                waits = inspect.iscoroutinefunction(inspect.unwrap(function))
                begin = "async " if waits else ""
                yield f"```python\n{begin}{_signature(method, function)}\n```\n"
                yield _markdown(function.__doc__)


def _methods(value: Any) -> Iterator[tuple[str, Any]]:
    for name, member in vars(value).items():
        if not name.startswith("_") and (
            inspect.isfunction(member) or isinstance(member, property)
        ):
            yield name, member


def _twin(name: str, method: str, function: Any) -> str | None:
    """The asynchronous method that a synchronous one says all of."""
    other = getattr(radixflow_sdk.RadixFlowClient, method, None)
    same = name == "RadixFlow" and other and function.__doc__ == other.__doc__
    return f"RadixFlowClient.{method}" if same else None


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    words: list[str] = []
    starred = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(_parameter(parameter))
    back = signature.return_annotation
    arrow = ""
    if not inspect.isclass(value) and back is not signature.empty:
        arrow = f" -> {_type(back)}"
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) <= 88:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{inner}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    shown = parameter.name
    if parameter.annotation is not parameter.empty:
        shown += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        shown += f" = {parameter.default!r}"
    return shown


def _type(annotation: Any) -> str:
    return (
        annotation
        if isinstance(annotation, str)
        else inspect.formatannotation(annotation)
    )


def _markdown(doc: str | None) -> str:
    """Google style to Markdown: sections become lists, ``::`` begins code."""
    lines: list[str] = []
    section = ""
    for line in _fenced(inspect.cleandoc(doc or "")).split("\n"):
        found = SECTION.fullmatch(line)
        if found:
            section = found[1]
            lines += [f"**{section}**", ""]
        elif section and line.startswith("    ") and not line.startswith("     "):
            entry = line.strip()
            name, colon, text = entry.partition(": ")
            named = colon and section != "Returns" and " " not in name
            lines.append(f"* `{name}`: {text}" if named else f"* {entry}")
        else:
            if line and not line.startswith(" "):
                section = ""
            lines.append(line.replace("        ", "  ", 1) if section else line)
    return "\n".join(lines).replace("``", "`") + "\n"


def _fenced(doc: str) -> str:
    def fence(found: re.Match[str]) -> str:
        return f"```python\n{textwrap.dedent(found[1]).strip()}\n```\n"

    return re.sub(r"^::\n\n((?:    .*\n|\n)+)", fence, doc, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(build(), encoding="utf-8")
