"""Model cards: what a scheduler and a clock must know of a model on a GPU.

Every number is of one of three kinds, and `Card.derivation` says which for each:
*public* (from the model's published configuration), *derived* (computed from public
numbers by a formula given here), *assumed* (an efficiency or an overhead; no run of
ours stands behind it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from server_ext.replay.worker import Cost

__all__ = ["CARDS", "H100", "Card", "Gpu", "Layout"]

_BF16 = 2
_FP32 = 4
_KERNEL_BLOCK = 16
"""Tokens that attention kernels take at a time; block sizes are multiples of it."""
_BLOCK = 16
"""vLLM's block size where no recurrent state asks for more."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: data-sheet rates, and assumed shares of them that a server reaches.

    Attributes:
        name: what it is called.
        flops: dense bf16 operations a second (data sheet).
        bandwidth: bytes of memory a second (data sheet).
        memory: bytes of memory (data sheet).
        compute_share: share of `flops` in a prefill (assumed).
        memory_share: share of `bandwidth` (assumed).
        used: share of memory that vLLM may take (its default).
        reserve: bytes for activations and graphs (assumed).
        launch: seconds a round costs beside reading the weights (assumed).
        host: seconds to plan a round (assumed).
        host_row: seconds more for each row (assumed).
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    compute_share: float = 0.40
    memory_share: float = 0.80
    used: float = 0.90
    reserve: float = 3e9
    launch: float = 2e-3
    host: float = 1e-3
    host_row: float = 2e-5


H100 = Gpu("H100 SXM 80 GB", flops=989e12, bandwidth=3.35e12, memory=80e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The public configuration of a model, as far as costs and states need it.

    Attributes:
        name: the model.
        hidden: width.
        intermediate: width of the feed-forward layers.
        gates: matrices of a feed-forward layer (3: gated, 2: plain).
        feed_forward: feed-forward layers.
        vocabulary: entries.
        tied: input and output embeddings are one matrix.
        attention: attention layers.
        heads: query heads.
        kv_heads: key and value heads.
        head_size: their size.
        gated_attention: the query projection also makes an output gate.
        recurrent: recurrent layers, 0 for a full-attention model.
        state: elements of one layer's recurrent state.
        convolution: elements of one layer's convolutional state.
        recurrent_weights: weights of one recurrent layer.
    """

    name: str
    hidden: int
    intermediate: int
    gates: int
    feed_forward: int
    vocabulary: int
    tied: bool
    attention: int
    heads: int
    kv_heads: int
    head_size: int
    gated_attention: bool
    recurrent: int = 0
    state: int = 0
    convolution: int = 0
    recurrent_weights: int = 0

    @property
    def body_weights(self) -> int:
        """Weights that every token passes."""
        queries = self.heads * self.head_size
        keys = self.kv_heads * self.head_size
        attention = self.hidden * (
            queries * (2 if self.gated_attention else 1) + 2 * keys + queries
        )
        feed_forward = self.gates * self.hidden * self.intermediate
        return (
            self.attention * attention
            + self.feed_forward * feed_forward
            + self.recurrent * self.recurrent_weights
        )

    @property
    def weights(self) -> int:
        """All weights."""
        return self.body_weights + self.vocabulary * self.hidden * (
            1 if self.tied else 2
        )

    @property
    def page_of_a_token(self) -> int:
        """Bytes of one token's keys and values in one attention layer."""
        return 2 * self.kv_heads * self.head_size * _BF16

    @property
    def page_of_a_state(self) -> int:
        """Bytes of one recurrent layer's states (recurrent in fp32, as vLLM has it)."""
        return self.state * _FP32 + self.convolution * _BF16

    @property
    def block_size(self) -> int:
        """Tokens of a cache block, as vLLM derives it in ``align`` mode.

        The smallest multiple of the kernel block whose keys and values fill at least a
        page of recurrent state (``Platform._align_hybrid_block_size``).
        """
        if not self.recurrent:
            return _BLOCK
        unit = _KERNEL_BLOCK * self.page_of_a_token
        return _KERNEL_BLOCK * -(-self.page_of_a_state // unit)

    @property
    def layers_a_group(self) -> int:
        """Layers of a cache group: vLLM takes the rarer kind's count."""
        return min(self.attention, self.recurrent) if self.recurrent else self.attention

    @property
    def recurrent_groups(self) -> int:
        """Recurrent cache groups."""
        return -(-self.recurrent // self.layers_a_group) if self.recurrent else 0


@dataclass(frozen=True, slots=True)
class Card:
    """A model on a GPU.

    Attributes:
        layout: the model's configuration.
        gpu: the GPU.
        source: where the configuration is published.
        max_model_len: longest prompt served; longer ones are rejected.
        token_budget: maximum tokens of a round.
        rows: maximum requests of a round (its slots).
    """

    layout: Layout
    gpu: Gpu
    source: str
    max_model_len: int = 16384
    token_budget: int = 8192
    rows: int = 16

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache pool: what memory the weights leave."""
        layout, gpu = self.layout, self.gpu
        left = gpu.used * gpu.memory - layout.weights * _BF16 - gpu.reserve
        block = layout.block_size * layout.page_of_a_token * layout.layers_a_group
        return max(0, int(left / block))

    @property
    def cost(self) -> Cost:
        """Seconds of a round, from operations and bytes over the GPU's rates."""
        layout, gpu = self.layout, self.gpu
        flops = gpu.flops * gpu.compute_share
        bandwidth = gpu.bandwidth * gpu.memory_share
        state = 2 * layout.recurrent * layout.page_of_a_state
        head = 2 * layout.vocabulary * layout.hidden
        scan = 6 * layout.recurrent * layout.state
        pair = 4 * layout.heads * layout.head_size * layout.attention
        return Cost(
            round=layout.body_weights * _BF16 / bandwidth + gpu.launch,
            token=(2 * layout.body_weights + scan) / flops,
            row=state / bandwidth + head / flops,
            pair=pair / flops,
            host=gpu.host,
            host_row=gpu.host_row,
        )

    @property
    def derivation(self) -> dict[str, str]:
        """For each number of the card: of which kind it is, and its formula."""
        gpu = self.gpu
        shares = (
            f"assumed: {gpu.compute_share:.0%} of {gpu.flops / 1e12:.0f} TFLOP/s, "
            f"{gpu.memory_share:.0%} of {gpu.bandwidth / 1e12:.2f} TB/s"
        )
        return {
            "layers, heads, states": f"public: {self.source}",
            "block_size": "derived: smallest multiple of 16 tokens whose keys and "
            "values fill a page of recurrent state (vLLM, mamba_cache_mode=align)",
            "weights": "derived: matrices of the configuration, bf16",
            "num_blocks": f"derived: {gpu.used:.0%} of {gpu.memory / 1e9:.0f} GB less "
            f"weights less {gpu.reserve / 1e9:.0f} GB (assumed), over the bytes of "
            "a block in a cache group",
            "cost.round": "derived + assumed: weights read once, over bandwidth; "
            f"plus {gpu.launch * 1e3:.0f} ms for launches (assumed)",
            "cost.token": "derived: 2 operations a weight, 6 a state element; "
            f"rates {shares}",
            "cost.row": "derived: states read and written once, logits of one row",
            "cost.pair": "derived: 4 operations a query head and head element",
            "cost.host, cost.host_row": "assumed: "
            f"{gpu.host * 1e3:.0f} ms and {gpu.host_row * 1e6:.0f} us",
            "token_budget, rows": "chosen: the paper's 16 rows; vLLM's usual 8,192",
        }

    def as_dict(self) -> dict[str, object]:
        """The card as JSON-ready data."""
        return {
            "model": self.layout.name,
            "gpu": self.gpu.name,
            "block_size": self.layout.block_size,
            "recurrent_groups": self.layout.recurrent_groups,
            "state_page_bytes": self.layout.page_of_a_state,
            "weights": self.layout.weights,
            "num_blocks": self.num_blocks,
            "token_budget": self.token_budget,
            "rows": self.rows,
            "max_model_len": self.max_model_len,
            "cost": self.cost.as_dict(),
            "derivation": self.derivation,
        }


def _qwen35(
    size: str, hidden: int, intermediate: int, layers: int, heads: int, values: int
) -> Card:
    """A dense Qwen3.5: three gated delta nets, then one gated attention layer."""
    keys, size_of_head = 16, 128
    width = 2 * keys * size_of_head + values * size_of_head
    inner = values * size_of_head
    return Card(
        Layout(
            name=f"Qwen3.5-{size}",
            hidden=hidden,
            intermediate=intermediate,
            gates=3,
            feed_forward=layers,
            vocabulary=248_320,
            tied=size in ("0.8B", "4B"),
            attention=layers // 4,
            heads=heads,
            kv_heads=2 if size == "0.8B" else 4,
            head_size=256,
            gated_attention=True,
            recurrent=layers // 4 * 3,
            state=values * size_of_head * size_of_head,
            convolution=3 * width,
            recurrent_weights=hidden * (width + inner + 2 * values + inner),
        ),
        H100,
        f"text_config of Qwen/Qwen3.5-{size} (config.json)",
    )


def _nemotron() -> Card:
    """NVIDIA-Nemotron-Nano-9B-v2: 27 Mamba-2, 25 feed-forward, 4 attention layers."""
    hidden, heads, head_size, state, groups = 4480, 128, 80, 128, 8
    inner = heads * head_size
    width = inner + 2 * groups * state
    return Card(
        Layout(
            name="Nemotron-Nano-9B-v2",
            hidden=hidden,
            intermediate=15_680,
            gates=2,
            feed_forward=25,
            vocabulary=131_072,
            tied=False,
            attention=4,
            heads=40,
            kv_heads=8,
            head_size=128,
            gated_attention=False,
            recurrent=27,
            state=heads * head_size * state,
            convolution=3 * width,
            recurrent_weights=hidden * (width + inner + heads + inner),
        ),
        H100,
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2 (config.json)",
    )


def _qwen3() -> Card:
    """Qwen3-8B, full attention: the control."""
    return Card(
        Layout(
            name="Qwen3-8B",
            hidden=4096,
            intermediate=12_288,
            gates=3,
            feed_forward=36,
            vocabulary=151_936,
            tied=False,
            attention=36,
            heads=32,
            kv_heads=8,
            head_size=128,
            gated_attention=False,
        ),
        H100,
        "Qwen/Qwen3-8B (config.json)",
    )


CARDS: Mapping[str, Card] = {
    card.layout.name: card
    for card in (
        _qwen35("0.8B", 1024, 3584, 24, 8, 16),
        _qwen35("4B", 2560, 9216, 32, 16, 32),
        _qwen35("9B", 4096, 12_288, 32, 16, 32),
        _qwen35("27B", 5120, 17_408, 64, 24, 48),
        _nemotron(),
        _qwen3(),
    )
}
"""The paper's models: five hybrids and the full-attention control."""
