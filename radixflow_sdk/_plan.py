"""From a request's fields to a checked `Plan`, or to an `InvalidInputError`.

Everything that can be refused without the server is refused here, before anything is
sent. `Plan` refuses inconsistent parts, so an invalid plan cannot exist. Equal options
are sent once, so that a duplicate has exactly its original's score.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import TypeGuard, get_args

from radixflow_sdk._messages import Branch, GroupRequest, Message, Plan, Sampling
from radixflow_sdk._prompt import Template, default_template
from radixflow_sdk._requests import (
    MAX_LABELS,
    MAX_PARTS,
    MAX_STOPS,
    GenerationRequest,
    Label,
    Normalize,
    ScoreRequest,
    Scoring,
)
from radixflow_sdk._validate import (
    check_choice,
    check_count,
    check_number,
    read_name,
    read_text,
    refuse,
)

_GROUP_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TOKEN_LIMIT = 2**63
Ids = tuple[int, ...]
_SCORINGS, _NORMALIZERS = get_args(Scoring), get_args(Normalize)


def make_plan(
    request: ScoreRequest, *, model: str | None = None, cache_salt: str | None = None
) -> Plan:
    """Check one call.

    Args:
        request: The call.
        model: The client's model, where it is known.
        cache_salt: The client's, for a request without its own.

    Raises:
        InvalidInputError: An argument is not usable; the error names field and value.
    """
    check_choice("scoring", request.scoring, _SCORINGS)
    check_choice("normalize", request.normalize, _NORMALIZERS)
    template = _read_template(request.template, request.scoring)
    question: object = request.question
    question = None if question is None else read_text("question", question)
    document, boundaries, between = _read_document(
        request.document, question or None, template
    )
    options = _read_options(request.options)
    _check_wrapped(options, template, request.scoring)
    members: dict[str | Ids, list[int]] = {}
    for index, option in enumerate(options):
        members.setdefault(option, []).append(index)
    contents = [template.offer(o) if isinstance(o, str) else o for o in members]
    labels = template.labels if request.labels is None else request.labels
    return Plan(
        request=GroupRequest(
            model=_read_model(model),
            document=document,
            boundaries=boundaries,
            question=between,
            branches=_branches(contents),
            scoring=request.scoring,
            labels=_read_labels(labels),
            group_id=_read_group_id(request.group_id),
            cache_salt=_read_salt(request.cache_salt, cache_salt),
            request_id=new_request_id(),
        ),
        options=options,
        members=tuple(map(tuple, members.values())),
        normalize=request.normalize,
        unconditional=_read_unconditional(request.unconditional),
    )


def make_generation_plan(
    request: GenerationRequest,
    *,
    model: str | None = None,
    cache_salt: str | None = None,
) -> Plan:
    """`make_plan` for generated text; equal branches stay separate.

    Raises:
        InvalidInputError: An argument is not usable; the error names field and value.
    """
    template = default_template("likelihood")
    document, boundaries, _ = _read_document(request.document, None, template)
    branches = _read_options(request.branches, field="branches")
    for index, branch in enumerate(branches):
        if _is_chat(document) and not isinstance(branch, str):
            raise refuse(
                f"branches[{index}]", branch, "after chat messages a branch is text"
            )
    return Plan(
        request=GroupRequest(
            model=_read_model(model),
            document=document,
            boundaries=boundaries,
            question=None,
            branches=_branches(branches),
            scoring="likelihood",
            labels=None,
            group_id=_read_group_id(request.group_id),
            cache_salt=_read_salt(request.cache_salt, cache_salt),
            request_id=new_request_id(),
            sampling=_read_sampling(request),
        ),
        options=branches,
        members=tuple((index,) for index in range(len(branches))),
        normalize="sum",
    )


def _branches(contents: Iterable[str | Ids]) -> tuple[Branch, ...]:
    return tuple(
        Branch(index=index, content=content) for index, content in enumerate(contents)
    )


def _read_model(model: str | None) -> str | None:
    return None if model is None else read_name("model", model, 4096)


def _read_salt(own: str | None, clients: str | None) -> str | None:
    salt = clients if own is None else own
    return None if salt is None else read_name("cache_salt", salt, 256)


def _is_chat(document: str | Ids | tuple[Message, ...]) -> bool:
    return bool(document) and isinstance(document[0], Message)


def _read_sampling(request: GenerationRequest) -> Sampling:
    check_count("max_tokens", request.max_tokens, maximum=2**31 - 1)
    check_number("temperature", request.temperature, minimum=0.0)
    check_number("top_p", request.top_p, minimum=0.0, strictly=True)
    if request.top_p > 1:
        raise refuse("top_p", request.top_p, "give a number above 0 and up to 1")
    stop: object = request.stop
    if not _is_sequence(stop) or len(stop) > MAX_STOPS:
        raise refuse("stop", stop, f"give a list of at most {MAX_STOPS} texts")
    seed: object = request.seed
    whole = seed if isinstance(seed, int) and not isinstance(seed, bool) else None
    if seed is not None and (whole is None or not -(2**63) <= whole < 2**63):
        raise refuse("seed", seed, "give a whole number of 64 bits, or None")
    return Sampling(
        max_tokens=request.max_tokens,
        temperature=float(request.temperature),
        top_p=float(request.top_p),
        stop=tuple(
            read_name(f"stop[{index}]", text, 4096) for index, text in enumerate(stop)
        ),
        seed=whole,
    )


def unconditional_plan(plan: Plan, wanted: Sequence[int]) -> Plan:
    """The group that scores some of a plan's branches after its unconditional context.

    Args:
        plan: A plan with an unconditional context.
        wanted: Indexes of the branches to score, not empty.
    """
    request = plan.request
    branches = tuple(
        replace(request.branches[index], index=place)
        for place, index in enumerate(wanted)
    )
    return replace(
        plan,
        request=replace(
            request,
            document=plan.unconditional or "",
            boundaries=(),
            question=None,
            branches=branches,
            group_id=f"{request.group_id[:114]}.unconditional",
            request_id=new_request_id(),
        ),
        members=tuple(plan.members[index] for index in wanted),
        normalize="sum",
        unconditional=None,
    )


def new_request_id() -> str:
    """A unique id for one request."""
    return f"req-{uuid.uuid4().hex}"


def _read_template(template: object, scoring: Scoring) -> Template:
    if template is None:
        return default_template(scoring)
    if not isinstance(template, Template):
        raise refuse("template", template, "give a radixflow_sdk.Template")
    for name in ("before_question", "after_question", "before_option", "after_option"):
        read_text(f"template.{name}", getattr(template, name))
    return template


def _read_group_id(value: object) -> str:
    if value is None:
        return f"g-{uuid.uuid4().hex}"
    if not isinstance(value, str) or not _GROUP_ID.fullmatch(value):
        raise refuse("group_id", value, "give 1 to 128 of A-Z a-z 0-9 . _ : -")
    return value


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(
        value, str | bytes | bytearray
    )


def _read_document(
    document: object, question: str | None, template: Template
) -> tuple[str | Ids | tuple[Message, ...], Ids, str | None]:
    """The document, the end of each part but the last, and the text after it."""
    between = None if question is None else template.ask(question)
    if isinstance(document, str):
        return read_text("document", document), (), between
    if not _is_sequence(document):
        raise refuse(
            "document",
            document,
            "give text, a list of token ids, a list of parts, or chat messages",
        )
    if document and isinstance(document[0], Mapping):
        messages = tuple(
            _read_message(f"document[{index}]", message)
            for index, message in enumerate(document)
        )
        if question is not None:
            messages = (*messages, template.ask_in_chat(question))
        return messages, (), None
    if document and (isinstance(document[0], str) or _is_sequence(document[0])):
        return *_read_parts(document), between
    return _read_token_ids("document", document), (), between


def _read_parts(document: Sequence[object]) -> tuple[str | Ids, Ids]:
    """The concatenated parts, and the end of each but the last."""
    if len(document) > MAX_PARTS:
        raise refuse("document", document, f"give at most {MAX_PARTS} parts")
    parts = _read_options(document, field="document")
    ends = tuple(accumulate(map(len, parts)))[:-1]
    texts = [part for part in parts if isinstance(part, str)]
    ids = [part for part in parts if not isinstance(part, str)]
    if texts and ids:
        odd = next(i for i, p in enumerate(parts) if type(p) is not type(parts[0]))
        raise refuse(
            f"document[{odd}]", parts[odd], "give parts that are all text or all ids"
        )
    return "".join(texts) if texts else tuple(chain.from_iterable(ids)), ends


def _read_unconditional(value: object) -> str | Ids | None:
    if value is None:
        return None
    if not isinstance(value, str) and not _is_sequence(value):
        raise refuse("unconditional", value, "give text or a list of token ids")
    read = (
        read_text("unconditional", value)
        if isinstance(value, str)
        else _read_token_ids("unconditional", value)
    )
    if not read:
        advice = "give text such as 'Answer:', or the id of the end-of-text token"
        raise refuse("unconditional", value, advice)
    return read


def _read_message(field: str, message: object) -> Message:
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        raise refuse(field, message, "give a dict with role and content, and no more")
    role = read_text(f"{field}.role", message["role"])
    if not role:
        raise refuse(f"{field}.role", role, "give a role such as user")
    return Message(role=role, content=read_text(f"{field}.content", message["content"]))


def _read_token_ids(field: str, value: Sequence[object]) -> Ids:
    return tuple(
        _read_token_id(f"{field}[{index}]", token) for index, token in enumerate(value)
    )


def _read_token_id(field: str, token: object) -> int:
    whole = token if isinstance(token, int) and not isinstance(token, bool) else -1
    if not 0 <= whole < _TOKEN_LIMIT:
        raise refuse(field, token, "a token id is a whole number from 0 to 2**63 - 1")
    return int(whole)


def _read_options(options: object, *, field: str = "options") -> tuple[str | Ids, ...]:
    if not _is_sequence(options):
        raise refuse(field, options, f"give a list of {field}")
    return tuple(
        _read_option(f"{field}[{index}]", option)
        for index, option in enumerate(options)
    )


def _read_option(field: str, option: object) -> str | Ids:
    if isinstance(option, str):
        read: str | Ids = read_text(field, option)
    elif _is_sequence(option):
        read = _read_token_ids(field, option)
    else:
        raise refuse(field, option, "give text or a list of token ids")
    if not read:
        raise refuse(field, option, "it is empty")
    return read


def _check_wrapped(
    options: tuple[str | Ids, ...], template: Template, scoring: Scoring
) -> None:
    """Refuse token ids where label scoring needs the template's text around them."""
    if scoring != "label" or not (template.before_option or template.after_option):
        return
    for index, option in enumerate(options):
        if not isinstance(option, str):
            raise refuse(
                f"options[{index}]",
                option,
                "the template cannot put text around token ids, so give text or a "
                "Template with empty before_option and after_option",
            )


def _read_labels(labels: object) -> tuple[Label, ...] | None:
    if labels is None:
        return None
    if not _is_sequence(labels):
        raise refuse("labels", labels, "give a list of texts or token ids")
    if len(labels) > MAX_LABELS:
        raise refuse("labels", labels, f"give at most {MAX_LABELS}")
    read = tuple(
        read_name(f"labels[{index}]", label, 4096)
        if isinstance(label, str)
        else _read_token_id(f"labels[{index}]", label)
        for index, label in enumerate(labels)
    )
    if len(set(read)) < len(read):
        raise refuse("labels", labels, "give each label once")
    return read
