"""Checks of arguments, and the one sentence that refuses a value."""

from __future__ import annotations

import sys

from radixflow_sdk.exceptions import InvalidInputError

MAX_COUNT = 2**16
_SHOWN = 80


def refuse(
    field: str, value: object, advice: str, *, mentions: tuple[str, ...] = ()
) -> InvalidInputError:
    """The error for an argument: its name, its value (shortened), and what to do.

    Args:
        field: The argument.
        value: Its value.
        advice: What to do.
        mentions: Other arguments that the advice mentions as ``name=value``.
    """
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - a huge integer, or a repr of the caller's own
        shown = f"a {type(value).__name__}"
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return InvalidInputError(
        f"{field} is {shown}; {advice}.", field=field, value=value, mentions=mentions
    )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of ``choices``.

    Raises:
        InvalidInputError: It is not.
    """
    if value not in choices:
        raise refuse(name, value, f"use one of {', '.join(choices)}")


def check_number(
    name: str, value: object, *, minimum: float, strictly: bool = False
) -> None:
    """Refuse a value that is not a finite number of at least (or above) ``minimum``.

    Raises:
        InvalidInputError: It is not.
    """
    good = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max  # false for NaN; integers have no bound
        and (value > minimum if strictly else value >= minimum)
    )
    if not good:
        bound = "above" if strictly else "of at least"
        raise refuse(name, value, f"give a finite number {bound} {minimum:g}")


def check_count(name: str, value: object, *, maximum: int = MAX_COUNT) -> None:
    """Refuse a value that is not a whole number from 1 to ``maximum``.

    Raises:
        InvalidInputError: It is not.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 1 <= value <= maximum:  # type: ignore[operator]
        raise refuse(name, value, f"give a whole number from 1 to {maximum}")


def check_callable(name: str, value: object) -> None:
    """Refuse a value that is neither None nor callable.

    Raises:
        InvalidInputError: It is not.
    """
    if value is not None and not callable(value):
        raise refuse(name, value, "give a function, or None")


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse a value that is not a ``kind``.

    Raises:
        InvalidInputError: It is not.
    """
    if not isinstance(value, kind):
        raise refuse(name, value, f"give a {kind.__name__}")


def read_text(field: str, value: object) -> str:
    """The value as text.

    Raises:
        InvalidInputError: It is not text, or no server accepts it.
    """
    if not isinstance(value, str):
        raise refuse(field, value, "give text (str)")
    if "\x00" in value:
        raise refuse(
            field, value, f"remove the NUL character at position {value.index(chr(0))}"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refuse(
            field, value, f"remove the lone surrogate at position {error.start}"
        ) from None
    return str(value)


def read_name(field: str, value: object, max_length: int) -> str:
    """The value as text of 1 to ``max_length`` characters.

    Raises:
        InvalidInputError: It is not.
    """
    text = read_text(field, value)
    if not 1 <= len(text) <= max_length:
        raise refuse(field, value, f"give 1 to {max_length} characters")
    return text
