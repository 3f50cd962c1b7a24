"""The wire's request and errors (``docs/wire.md``), validated on arrival.

Bytes enter here, so pydantic is used here.  The other modules can rely on a request
that is well-formed and bounded; `tokens` checks whether it fits the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal, LiteralString

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

__all__ = ["BranchesRequest", "RequestRefused", "parse_request"]

MAX_BRANCHES = 4096
MAX_MESSAGES = 4096
MAX_LABELS = 64
MAX_BOUNDARIES = 62
"""The server adds the document's end and the end of what all branches share."""
MAX_TOKEN_ID = 2**31 - 1
MAX_SHOWN = 60
"""Characters of a key or value that an error shows."""
GROUP_ID = r"^[A-Za-z0-9._:-]{1,128}$"

TokenId = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Length = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKEN_ID)]
LabelText = Annotated[str, Field(strict=True, min_length=1)]
Label = Annotated[
    Annotated[LabelText, Tag("text")] | Annotated[TokenId, Tag("id")],
    Discriminator(lambda label: "text" if isinstance(label, str) else "id"),
]


class RequestRefused(ValueError):
    """A request that is answered with an error before anything runs.

    Attributes:
        status: HTTP status.
        code: the wire's error code.
        field: dotted path of the offending field, or None.
    """

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {
            "error": {
                "code": self.code,
                "message": str(self),
                "field": self.field,
                "type": "radixflow_error",
            }
        }


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_field(cls, data: object) -> object:
        """Fail at the first one, where pydantic would make an error of each."""
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise _wrong(key, "unknown field")
        return data


class Message(_Wire):
    """One chat message."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str


class Document(_Wire):
    """The shared document, in exactly one of three forms.

    `boundaries` are prefix lengths, in characters or token ids, at which prompts of
    other groups are expected to part from this one.
    """

    text: str | None = None
    token_ids: TokenIds | None = None
    messages: (
        Annotated[
            list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
        ]
        | None
    ) = None
    boundaries: (
        Annotated[list[Length], Field(max_length=MAX_BOUNDARIES, fail_fast=True)] | None
    ) = None

    @model_validator(mode="after")
    def _one_form(self) -> Document:
        forms = (self.text, self.token_ids, self.messages)
        if sum(form is not None for form in forms) != 1:
            raise ValueError("give exactly one of text, token_ids and messages")
        if self.boundaries is None:
            return self
        if self.messages is not None:
            raise _wrong("boundaries", "the server finds those of messages by itself")
        if any(one >= other for one, other in pairwise(self.boundaries)):
            raise _wrong("boundaries", "they must be strictly ascending")
        if max(self.boundaries, default=0) > len(self.text or self.token_ids or ()):
            raise _wrong("boundaries", "the last one is beyond the document's end")
        return self


class Branch(_Wire):
    """What follows the document and question, as text or token ids."""

    text: Annotated[str, Field(min_length=1)] | None = None
    token_ids: TokenIds | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Branch:
        if (self.text is None) == (self.token_ids is None):
            raise ValueError("give exactly one of text and token_ids")
        return self


class BranchesRequest(_Wire):
    """The body of ``POST /v1/branches``."""

    model: str | None = None
    document: Document
    question: str | None = None
    branches: Annotated[
        list[Branch], Field(min_length=1, max_length=MAX_BRANCHES, fail_fast=True)
    ]
    scoring: Literal["likelihood", "label"] = "likelihood"
    labels: (
        Annotated[
            list[Label], Field(min_length=1, max_length=MAX_LABELS, fail_fast=True)
        ]
        | None
    ) = None
    group_id: Annotated[str, Field(pattern=GROUP_ID)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> BranchesRequest:
        if (self.scoring == "label") != (self.labels is not None):
            raise _wrong("labels", "they go with scoring 'label', and only with it")
        if self.question and self.document.messages is not None:
            raise _wrong("question", "it cannot be combined with document.messages")
        if self.document.text == "" and not self.question:
            raise _wrong("document", "it and question are both empty")
        return self


def _wrong(field: str, message: LiteralString) -> PydanticCustomError:
    """An error between the fields of an object, reported at one of them."""
    return PydanticCustomError("at_field", message, {"field": field})


def parse_request(body: bytes, *, limit: int = MAX_TOKEN_ID) -> BranchesRequest:
    """Read a request from its JSON.

    Args:
        body: JSON in one of Unicode's encodings.
        limit: maximum tokens of a prompt.

    Raises:
        RequestRefused: 400 for bytes that are not clean JSON, 422 for the first field
            that is wrong.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(
            400, "invalid_json", f"the body is not JSON: {error}"
        ) from None
    # All of it need be looked at only where a byte or an escape could be such a thing.
    suspect = any(sign in body for sign in (b"\0", b"\\u", b"\xed"))
    if suspect and (path := _unclean(data)) is not None:
        raise RequestRefused(
            400,
            "invalid_json",
            f"{dotted(path) or 'the body'} has a NUL character or a lone surrogate, "
            "which no tokenizer takes: remove it",
            dotted(path) or None,
        )
    _check_lengths(data, limit)
    try:
        return BranchesRequest.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from None


_MESSAGES = {
    "model_type": "an object is wanted here",
    "missing": "the field is missing",
}
"""Where pydantic's own words speak of Python."""


def _refusal(error: ValidationError) -> RequestRefused:
    # A list fails at its first error and an object at its first unknown key, so there
    # are a few errors at most.
    first = error.errors(include_url=False)[0]
    kind, value, place = first["type"], first["input"], first["loc"]
    # Behind a label, pydantic names the kind that it tried.
    path = place[:2] if place[:1] == ("labels",) else place
    if kind == "at_field":
        path = (*path, first["ctx"]["field"])
    field = dotted(path) or None
    message = _MESSAGES.get(kind, first["msg"].removeprefix("Value error, "))
    value_text = "" if isinstance(value, dict | list) else f" (got {shortened(value)})"
    beyond = kind in ("greater_than_equal", "less_than_equal")
    is_token = path[:1] == ("labels",) or path[-2:-1] == ("token_ids",)
    code = "token_out_of_range" if beyond and is_token else "invalid_request"
    return RequestRefused(422, code, f"{field or 'body'}: {message}{value_text}", field)


def dotted(path: Iterable[int | str]) -> str:
    """A path into the request as errors name it, each key shortened."""
    return ".".join(
        key if len(key) <= MAX_SHOWN else key[: MAX_SHOWN - 3] + "..."
        for key in map(str, path)
    )


def shortened(value: object) -> str:
    """`value` as an error shows it, whatever its length."""
    text = repr(value[: MAX_SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _check_lengths(data: object, limit: int) -> None:
    """Refuse lists of token ids that cannot fit before each of their ids is checked."""
    if not isinstance(data, dict):
        return
    branches = data.get("branches")
    branches = branches[:MAX_BRANCHES] if isinstance(branches, list) else []
    for index, holder in enumerate([data.get("document"), *branches], start=-1):
        ids = holder.get("token_ids") if isinstance(holder, dict) else None
        if isinstance(ids, list) and len(ids) > limit:
            field = "document" if index < 0 else f"branches.{index}"
            raise context_too_long(field, f"it has {len(ids)} tokens", limit)


def context_too_long(field: str, what: str, limit: int) -> RequestRefused:
    """The refusal of a prompt that the model cannot take."""
    return RequestRefused(
        422,
        "context_too_long",
        f"{field}: {what} and the model takes {limit} beside the one it generates: "
        "shorten the document or the branch",
        field,
    )


def _unclean(data: object) -> list[int | str] | None:
    """Path to the first string with a NUL or a lone surrogate, [] for the root.

    It walks the data without a copy of any level of it.
    """
    path: list[int | str] = []
    levels: list[Iterator[tuple[int | str, object]]] = [iter([("", data)])]
    while levels:
        for key, value in levels[-1]:
            if isinstance(key, str) and not _encodable(key):
                return path[1:]
            if isinstance(value, str) and ("\0" in value or not _encodable(value)):
                return [*path, key][1:]
            if isinstance(value, dict | list):
                path.append(key)
                inner = value.items() if isinstance(value, dict) else enumerate(value)
                levels.append(iter(inner))
                break
        else:
            levels.pop()
            del path[-1:]
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
