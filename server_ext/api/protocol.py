"""The wire's request and errors (``docs/wire.md``), checked as they come in.

pydantic lives here because bytes enter here.  Everything behind this room may trust
that a request is well-formed and bounded; whether it fits the model is `tokens`' job.
"""

from __future__ import annotations

import json
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
MAX_LABELS = 64
MAX_BOUNDARIES = 62
"""The server adds the document's end and the end of what all branches share."""
MAX_TOKEN_ID = 2**31 - 1
GROUP_ID = r"^[A-Za-z0-9._:-]{1,128}$"

TokenId = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKEN_ID)]
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
    token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)] | None = (
        None
    )
    boundaries: Annotated[list[Length], Field(max_length=MAX_BOUNDARIES)] | None = None

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
    token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None

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
    branches: Annotated[list[Branch], Field(min_length=1, max_length=MAX_BRANCHES)]
    scoring: Literal["likelihood", "label"] = "likelihood"
    labels: (
        Annotated[list[Label], Field(min_length=1, max_length=MAX_LABELS)] | None
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
    """What is wrong between fields, told of the one to mend."""
    return PydanticCustomError(field, message)


def parse_request(body: bytes) -> BranchesRequest:
    """Read a request from its JSON.

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
            f"{path or 'the body'} has a NUL character or a lone surrogate, which no "
            "tokenizer takes: remove it",
            path or None,
        )
    try:
        return BranchesRequest.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from None


_MESSAGES = {
    "extra_forbidden": "unknown field",
    "model_type": "an object is wanted here",
    "missing": "the field is missing",
}
"""Where pydantic's own words speak of Python."""


def _refusal(error: ValidationError) -> RequestRefused:
    first = error.errors(include_url=False, include_context=False)[0]
    kind, value = first["type"], first.get("input")
    path = _path(kind, first["loc"])
    field = ".".join(map(str, path)) or None
    message = _MESSAGES.get(kind, first["msg"].removeprefix("Value error, "))
    shown = "" if isinstance(value, dict | list) else f" (got {_short(value)})"
    beyond = kind in ("greater_than_equal", "less_than_equal")
    is_token = path[:1] == ("labels",) or path[-2:-1] == ("token_ids",)
    code = "token_out_of_range" if beyond and is_token else "invalid_request"
    return RequestRefused(422, code, f"{field or 'body'}: {message}{shown}", field)


def _path(kind: str, place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The data's own path: behind a label pydantic names the kind that it tried."""
    if kind in BranchesRequest.model_fields or kind in Document.model_fields:
        return (*place, kind)
    return place[:2] if place[:1] == ("labels",) else place


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unclean(data: object) -> str | None:
    """Path of the first string with a NUL or a lone surrogate, '' for the root."""
    stack: list[tuple[str, object]] = [("", data)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str):
            if "\0" in value or not _encodable(value):
                return path
        elif isinstance(value, dict):
            for key, inner in reversed(value.items()):
                if not _encodable(key):
                    return path
                stack.append((f"{path}.{key}".lstrip("."), inner))
        elif isinstance(value, list):
            stack.extend(
                (f"{path}.{index}".lstrip("."), inner)
                for index, inner in reversed(list(enumerate(value)))
                if isinstance(inner, str | dict | list)
            )
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
