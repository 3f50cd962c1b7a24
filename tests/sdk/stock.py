"""A vLLM server without the plug-in, as far as the SDK asks it: words for tokens, and
log-probabilities made up from what stands before them."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

WORDS = re.compile(r" ?\w+|\s+|.")
VOCABULARY = 400
BOS = 2


@dataclass
class StockServer:
    """Answers httpx requests.

    Attributes:
        knows_ids: Whether ``logprob_token_ids`` is a field that it knows.
        adds_bos: Whether its tokenizer puts a BOS before a text.
        longest: The model's length.
        changed: Log-probabilities to answer in place of the made-up ones, by token.
        requests: Path and body of each request.
    """

    knows_ids: bool = True
    adds_bos: bool = False
    longest: int = 1000
    changed: dict[int, float] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=lambda: {"<s>": BOS})

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content) if request.content else {}
        self.requests.append((path, body))
        self.headers.append(request.headers)
        if path == "/tokenize":
            ids = self.encode(body["prompt"])
            special = [BOS] if body["add_special_tokens"] and self.adds_bos else []
            answer = {"tokens": special + ids, "max_model_len": self.longest}
        elif path == "/v1/completions":
            choices = [self._choice(body, prompt) for prompt in body["prompt"]]
            answer = {
                "choices": [
                    {"index": index, "text": "", "logprobs": choice}
                    for index, choice in reversed(list(enumerate(choices)))
                ]
            }
        else:
            return httpx.Response(404, json={"detail": "Not Found"})
        return httpx.Response(200, json=answer)

    def encode(self, text: str) -> list[int]:
        found = re.findall(r"<s>|" + WORDS.pattern, text, re.DOTALL)
        return [self.words.setdefault(word, 3 + len(self.words)) for word in found]

    def row(self, before: Sequence[int]) -> list[float]:
        """Log-probabilities of the whole vocabulary after some tokens."""
        seed = hashlib.blake2b(str(list(before)).encode()).digest()
        logits = [3 * math.sin(seed[at % 64] + at) for at in range(VOCABULARY)]
        total = math.log(math.fsum(math.exp(value) for value in logits))
        return [value - total for value in logits]

    def sum(self, context: Sequence[int], own: Sequence[int]) -> float:
        """What an option scores."""
        return math.fsum(
            self.row([*context, *own[:at]])[token] for at, token in enumerate(own)
        )

    def _choice(self, body: Mapping[str, Any], prompt: list[int]) -> dict[str, Any]:
        assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 0, 1)
        assert body["return_tokens_as_token_ids"] is True
        row = self.row(prompt)
        top = max(range(VOCABULARY), key=row.__getitem__)
        ids = body.get("logprob_token_ids") if self.knows_ids else None
        assert ids is None or (len(ids) <= 128 and not body.get("echo"))
        tokens, rows = [top], [self._shown(row, [top, *(ids or [])])]
        if body.get("echo"):
            before: list[Any] = [None]
            for at in range(1, len(prompt)):
                row = self.row(prompt[:at])
                likeliest = max(range(VOCABULARY), key=row.__getitem__)
                before.append(self._shown(row, [prompt[at], likeliest]))
            tokens, rows = [*prompt, top], [*before, *rows]
        return {
            "tokens": [f"token_id:{token}" for token in tokens],
            "top_logprobs": rows,
        }

    def _shown(self, row: list[float], ids: Sequence[int]) -> dict[str, float]:
        return {f"token_id:{i}": self.changed.get(i, row[i]) for i in ids}
