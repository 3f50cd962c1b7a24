"""Real tokenizers without a network: an installed package brings their vocabularies.

``mistral_common`` (a dependency of vLLM) has those of Mistral's models. A byte-level
one is cut to its first ranks, which is a vocabulary of its own, and split once as GPT-2
splits and once as newer models do. A SentencePiece one makes a Llama-type tokenizer
with a BOS and no pre-tokenizer at all. SmolLM2's is that of `examples/smollm2.py`,
which downloads it, so its tests are slow ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from examples.smollm2 import cached_checkpoint
from server_ext.demo import CHECKPOINT

RANKS = 30_000
Merge = tuple[str, str]


def tokenizer_named(name: str) -> Any:
    """The tokenizer, wrapped as vLLM wraps it."""
    return _BUILDERS[name]()


@cache
def _demo() -> Any:
    return _wrapped(_backend().from_file(str(CHECKPOINT / "tokenizer.json")))


@cache
def _gpt2_style() -> Any:
    from tokenizers import pre_tokenizers

    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


@cache
def _tekken() -> Any:
    from tokenizers import Regex, pre_tokenizers

    pattern = Regex(_read_tekken()["config"]["pattern"])
    return _byte_level(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )


@cache
def _llama_style() -> Any:
    from tokenizers import models, normalizers, processors

    path = _data() / "tokenizer.model.v1"
    if not path.exists():
        pytest.skip("this mistral_common has no such vocabulary")
    pieces = pytest.importorskip("sentencepiece").SentencePieceProcessor(str(path))
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.vocab_size())}
    tokenizer = _backend()(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary),
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    tokenizer.add_special_tokens(["<s>"])
    return _wrapped(tokenizer, bos_token="<s>")


@cache
def _smollm2() -> Any:
    path = cached_checkpoint() / "tokenizer.json"
    return _wrapped(_backend().from_file(str(path)), bos_token="<|im_start|>")


_BUILDERS: dict[str, Callable[[], Any]] = {
    "demo": _demo,
    "gpt2-style": _gpt2_style,
    "tekken": _tekken,
    "llama-style": _llama_style,
    "smollm2": _smollm2,
}
NAMES = (
    *(name for name in _BUILDERS if name != "smollm2"),
    pytest.param("smollm2", marks=pytest.mark.slow),
)


def _backend() -> Any:
    return pytest.importorskip("tokenizers").Tokenizer


def _wrapped(tokenizer: Any, **special: str) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def _data() -> Path:
    package = pytest.importorskip("mistral_common")
    return Path(package.__file__).parent / "data"


def _read_tekken() -> Any:
    path = _data() / "tekken_240911.json"
    if not path.exists():
        pytest.skip("this mistral_common has no such vocabulary")
    return json.loads(path.read_text("utf-8"))


def _byte_level(pre_tokenizer: Any) -> Any:
    from tokenizers import decoders, models

    letters = _letters_of_bytes()
    vocabulary = {
        "".join(letters[byte] for byte in base64.b64decode(word["token_bytes"])): rank
        for rank, word in enumerate(_read_tekken()["vocab"][:RANKS])
    }
    tokenizer = _backend()(models.BPE(vocab=vocabulary, merges=_merges(vocabulary)))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer)


def _merges(vocabulary: Mapping[str, int]) -> list[Merge]:
    """Every way in which two words make a third, the earliest word first."""
    ranked = sorted(vocabulary, key=lambda word: vocabulary[word])
    return [merge for word in ranked for merge in sorted(_halves(word, vocabulary))]


def _halves(word: str, vocabulary: Mapping[str, int]) -> Iterator[Merge]:
    for cut in range(1, len(word)):
        if word[:cut] in vocabulary and word[cut:] in vocabulary:
            yield word[:cut], word[cut:]


def _letters_of_bytes() -> list[str]:
    """GPT-2's letters for the 256 bytes."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]
