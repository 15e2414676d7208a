"""An M²RNN block whose middle is one operator (kernels/m2rnn/layer.py): when, and how it is fed."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from blocks.base import State
from kernels.m2rnn import layer_choice

if TYPE_CHECKING:
    from blocks.m2rnn import M2RNN


def runs_whole(mixer: "M2RNN", x: Tensor) -> bool:
    """Whether this block has the form that the operator knows, and it proves right here."""
    o, N = mixer.options, mixer.heads
    one_form = (
        o.gate == "softplus_decay" and o.gate_precision == "float32" and o.write == "outer"
        and o.qk_norm == "none" and o.scale == "one" and o.output_gate and o.norm == "whole"
        and o.order == "gate_norm" and o.value_heads == o.gate_heads == N
    )  # fmt: skip
    if not one_form or not 0 < o.convolution <= min(4, x.shape[1]):
        return False
    autocast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    sizes = (
        o.query_heads, o.key_heads, N, o.key_dim, o.value_dim, o.forget_heads, o.convolution,
        o.weight_heads, int(o.value_residual),
    )  # fmt: skip
    modes = (o.weight, o.nonlinearity, o.clip)
    return layer_choice.runs_whole(x.device, dtype, sizes, modes, x.shape[0], x.shape[1])


def run_whole(mixer: "M2RNN", x: Tensor) -> tuple[Tensor, State]:
    """What the output projection of `mixer` takes, and the state behind x.

    The projection's rows are put in the operator's order, so that each part of a token's numbers
    begins where they are read four at a time.
    """
    from kernels.m2rnn.layer import Widths, m2rnn_layer  # needs triton

    o = mixer.options
    widths = Widths(
        query_heads=o.query_heads, key_heads=o.key_heads, heads=mixer.heads, K=o.key_dim,
        V=o.value_dim, forget_heads=o.forget_heads,
    )  # fmt: skip
    mixed, a, gate = mixer.input.weight.split(mixer.parts)
    rest = mixed.new_zeros(widths.parts[-1], mixed.shape[1])
    projected = F.linear(x, torch.cat([mixed, gate, a, rest]))
    decay, taps, norm = mixer.forget.decay, mixer.convolution, mixer.norm.weight
    assert decay is not None
    assert taps is not None
    assert norm is not None
    y, last = m2rnn_layer(
        projected, taps.weight, decay.A_log, decay.dt_bias, mixer.state_weight(), mixer.residual,
        norm, widths=widths, nonlinearity=o.nonlinearity, clip=o.clip, eps=o.norm_eps,
    )  # fmt: skip
    carried = projected[:, x.shape[1] - o.convolution + 1 :, : len(mixed)].clone()
    return y, {"state": last, "convolution": carried}
