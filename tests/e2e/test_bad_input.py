"""Bad input over HTTP: refused with the field's name, and the server lives on."""

import json
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served, body

pytestmark = pytest.mark.server

JSON = {"Content-Type": "application/json"}
DOCUMENT = "Anna lives in Port Alma. The lamp is kept in the attic."


def asked(*branches: str, **fields: Any) -> dict[str, Any]:
    return body(DOCUMENT, branches or [" Oslo"]) | fields


def lives_on(server: Served) -> None:
    server.group(DOCUMENT, [" Port Alma", " Oslo"])


BAD: dict[str, tuple[Any, int, str, str | None]] = {
    "all empty": (asked(document={"text": ""}), 422, "invalid_request", "document"),
    "no options": (asked(branches=[]), 422, "invalid_request", "branches"),
    "4,097 options": (
        asked(*[f" {n}" for n in range(4097)]),
        422,
        "invalid_request",
        "branches",
    ),
    "an empty option": (asked(" a", ""), 422, "invalid_request", "branches.1.text"),
    "a negative token": (
        asked(branches=[{"token_ids": [-1]}]),
        422,
        "token_out_of_range",
        "branches.0.token_ids.0",
    ),
    "token 2**63": (
        asked(document={"token_ids": [2**63]}),
        422,
        "token_out_of_range",
        "document.token_ids.0",
    ),
    "a token beyond the vocabulary": (
        asked(branches=[{"text": " a"}, {"token_ids": [60_000]}]),
        422,
        "token_out_of_range",
        "branches.1.token_ids",
    ),
    "a label beyond the vocabulary": (
        asked(scoring="label", labels=[60_000]),
        422,
        "token_out_of_range",
        "labels",
    ),
    "a label of many tokens": (
        asked(scoring="label", labels=[" yes", " yes indeed"]),
        422,
        "label_not_one_token",
        "labels.1",
    ),
    "a lone surrogate": (
        asked(question="\ud800"),
        400,
        "invalid_json",
        "question",
    ),
    "NUL": (asked(" a", " b\0"), 400, "invalid_json", "branches.1.text"),
    "an unknown model": (asked(model="gpt"), 404, "model_not_found", "model"),
    "an unknown field": (asked(top_k=1), 422, "invalid_request", "top_k"),
    "no JSON": (b"{", 400, "invalid_json", None),
    "no body": (b"", 400, "invalid_json", None),
}


@pytest.mark.parametrize(
    ("content", "status", "code", "field"), BAD.values(), ids=BAD.keys()
)
def test_a_refusal_names_the_field(
    server: Served, content: Any, status: int, code: str, field: str | None
) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = server.http.post("/v1/branches", content=raw, headers=JSON)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == (code, field)
    assert error["type"] == "radixflow_error"
    assert "\n" not in error["message"]
    lives_on(server)


def test_the_models_limit_is_exact(server: Served) -> None:
    limit = server.stats()["settings"]["max_model_len"]
    for over in (0, 1):
        answer = server.post(
            asked(
                document={"token_ids": [7] * (limit - 11 + over)},
                branches=[{"token_ids": [8] * 10}],
            )
        )
        if not over:  # one token is left for the one that is generated
            assert json.loads(answer.text.splitlines()[-1])["completed"] == 1
            continue
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert (error["code"], error["field"]) == ("context_too_long", "branches.0")
        assert f"has {limit} tokens" in error["message"]
        assert str(limit - 1) in error["message"]
    lives_on(server)


def test_a_body_over_the_limit(server: Served) -> None:
    content = b" " * (64 * 2**20 + 1)
    answer = server.http.post("/v1/branches", content=content, headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
    lives_on(server)


@pytest.mark.parametrize("path", ["/v1/branches", "/v1/radixflow/policy"])
def test_a_form_of_a_web_page(server: Served, path: str) -> None:
    answer = server.http.post(path, content=json.dumps({"name": "radix"}))
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"
    lives_on(server)


@pytest.mark.parametrize("rank", ["1", "-1", "x", "9" * 5000])
def test_a_rank_that_is_none(server: Served, rank: str) -> None:
    headers = {"X-data-parallel-rank": rank}
    answer = server.post(asked(), headers=headers)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "X-data-parallel-rank"
    assert server.post(asked(), headers={"X-data-parallel-rank": "0"}).is_success


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/branches"),
        ("GET", "/v1/radixflow/stats"),
        ("POST", "/v1/radixflow/policy"),
    ],
)
@pytest.mark.parametrize("key", [None, "wrong"])
def test_every_route_wants_the_key(
    server: Served, method: str, path: str, key: str | None
) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = httpx.request(method, server.url + path, headers=headers, json=asked())
    assert answer.status_code == 401


def test_an_unknown_policy(server: Served) -> None:
    for name in ("fastest", None, ["radix"]):
        answer = server.post({"name": name}, "/v1/radixflow/policy")
        assert answer.status_code == 422
        assert answer.json()["error"]["field"] == "name"


def test_a_request_id_comes_back(server: Served) -> None:
    answer = server.post(asked(), headers={"X-Request-ID": "my-request.1"})
    assert answer.headers["x-request-id"] == "my-request.1"
    started = json.loads(answer.text.splitlines()[0])
    assert started["request_id"] == "my-request.1"
