"""A vLLM worker whose recurrent layers run in float32 on a CPU.

vLLM's CPU kernels of the gated delta rule take bfloat16 only, and bfloat16 hides small
faults under its rounding.  This worker computes the same layers step by step with
PyTorch (Yang et al., *Gated Delta Networks*, 2024, equation 10), so that a score read
behind the cache can be held against the uncached one to 1e-4 nat.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.utils.torch_utils import LayerNameType, _resolve_layer_name
from vllm.v1.worker.cpu_worker import CPUWorker

__all__ = ["Float32Worker"]


def delta_rule(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    core_attn_out: torch.Tensor,
    layer_name: LayerNameType,
) -> None:
    """The op of vLLM's CPU layer, for rows without speculative tokens."""
    context = get_forward_context()
    layer = context.no_compile_layers[_resolve_layer_name(layer_name)]
    if context.attn_metadata is None:
        return
    metadata: Any = context.attn_metadata[layer.prefix]
    if not metadata.num_actual_tokens:
        return
    conv_cache, states = layer.kv_cache[0].transpose(1, 2), layer.kv_cache[1]
    assert conv_cache.dtype == states.dtype == torch.float32
    starts = metadata.non_spec_query_start_loc.tolist()
    slots = metadata.non_spec_state_indices_tensor.tolist()
    # A row of one new token has a state by definition; only prefills carry the flag.
    resumed = [True] * metadata.num_decodes
    if metadata.num_prefills:
        resumed = metadata.has_initial_state.tolist()[: len(starts) - 1]
    weight = gdn_attention._unpacked_conv_weight(layer)
    for start, end, slot, goes_on in zip(
        starts[:-1], starts[1:], slots, resumed, strict=False
    ):
        history, state = conv_cache[slot], states[slot]
        if not goes_on:
            history.zero_()
            state.zero_()
        rows = torch.cat([history, mixed_qkv[start:end].T], dim=1)
        history.copy_(rows[:, -history.size(1) :])
        rows = functional.conv1d(
            rows[None], weight[:, None], layer.conv1d.bias, groups=weight.size(0)
        )[0]
        query, key, value = layer.rearrange_mixed_qkv(functional.silu(rows).T)
        core_attn_out[start:end] = _recur(
            functional.normalize(query[0], dim=-1) * query.size(-1) ** -0.5,
            functional.normalize(key[0], dim=-1),
            value[0],
            torch.exp(
                -layer.A_log.float().exp()
                * functional.softplus(a[start:end].float() + layer.dt_bias.float())
            ),
            torch.sigmoid(b[start:end].float()),
            state,
        )


def _recur(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """Run the rule over ``(tokens, heads, size)``; the state ``(heads, value, key)``
    is left as it is after the last token."""
    out = torch.empty_like(value)
    now = state.clone()
    for step in range(len(query)):
        now = now * decay[step, :, None, None]
        read = torch.einsum("hvk,hk->hv", now, key[step])
        written = (value[step] - read) * beta[step, :, None]
        now = now + torch.einsum("hv,hk->hvk", written, key[step])
        out[step] = torch.einsum("hvk,hk->hv", now, query[step])
    state.copy_(now)
    return out


gdn_attention.cpu_gdn_attention_core = delta_rule


class Float32Worker(CPUWorker):
    """vLLM's CPU worker; importing its module exchanged the kernel."""
