"""causal-conv1d's kernels, as an operator that torch.compile can look past; also over documents.

Compiled CUDA for 2 to 4 taps and multiples of 8 channels. Written for 1.5 and later, whose two
functions mamba-ssm and fla call as well.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.backends import Signature

TAPS = (2, 3, 4)
ALIGNED = 8  # channels, and the distances between tokens and between sequences in memory


def why_not(signature: Signature) -> str | None:
    """What rules it out before it is tried."""
    sizes = dict(signature.sizes)
    if signature.device.type != "cuda":
        return "its kernels need a GPU"
    if signature.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it has no kernel for {signature.dtype}"
    if sizes["taps"] not in TAPS or sizes["channels"] % ALIGNED:
        return (
            f"it takes 2 to 4 taps and multiples of {ALIGNED} channels, not {sizes['taps']} taps "
            f"and {sizes['channels']} channels"
        )
    return None


def causal_convolution_cuda(
    x: Tensor, weight: Tensor, bias: Tensor | None, document: Tensor | None, *, silu: bool
) -> Tensor:
    """y (B, T, C) of `kernels.convolution.causal_convolution`, from no state; x may be a slice.

    document: (B, T) int32, ascending: a token sees inputs of its own document alone.
    """
    return torch.ops.arch_search.causal_conv1d(x, weight.contiguous(), bias, document, silu)


def _functions() -> Any:
    """The module of its two passes."""
    from causal_conv1d import cpp_functions  # type: ignore[import-not-found]

    return cpp_functions


def _channels_first(x: Tensor) -> Tensor:
    """(B, T, C) -> (B, C, T), each token's channels together and aligned in memory."""
    aligned = x.stride(2) == 1 and not (x.stride(0) % ALIGNED or x.stride(1) % ALIGNED)
    return (x if aligned else x.contiguous()).transpose(1, 2)


def _forward(x: Tensor, weight: Tensor, bias: Any, document: Any, silu: bool) -> Tensor:
    forward = _functions().causal_conv1d_fwd_function
    y = forward(_channels_first(x), weight, bias, document, None, None, silu)
    return y.transpose(1, 2).contiguous()


def _backward(
    x: Tensor, weight: Tensor, bias: Any, document: Any, grad: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias, the last one empty where there is none."""
    backward = _functions().causal_conv1d_bwd_function
    given = weight.new_zeros(len(weight)) if bias is None else bias  # some versions want one
    dx, dw, db, *_ = backward(
        _channels_first(x), weight, given, _channels_first(grad), document, None, None, None,
        False, silu,
    )  # fmt: skip
    db = x.new_empty(0) if bias is None else db.to(bias.dtype)
    return dx.transpose(1, 2).contiguous(), dw.to(weight.dtype).contiguous(), db


_forward_op = torch.library.custom_op(
    "arch_search::causal_conv1d",
    _forward,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor? document, bool silu) -> Tensor",
)
_backward_op = torch.library.custom_op(
    "arch_search::causal_conv1d_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor? document, Tensor grad, bool silu) "
    "-> (Tensor, Tensor, Tensor)",
)


@_forward_op.register_fake
def _(x, weight, bias, document, silu):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_backward_op.register_fake
def _(x, weight, bias, document, grad, silu):
    db = x.new_empty(0) if bias is None else torch.empty_like(bias)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, torch.empty_like(weight, memory_format=torch.contiguous_format), db


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x, weight, bias, document, ctx.silu = inputs
    ctx.save_for_backward(x, weight, bias, document)


def _differentiate(ctx: Any, grad: Tensor):
    x, weight, bias, document = ctx.saved_tensors
    dx, dw, db = torch.ops.arch_search.causal_conv1d_backward(
        x, weight, bias, document, grad, ctx.silu
    )
    return dx, dw, None if bias is None else db, None, None


torch.library.register_autograd("arch_search::causal_conv1d", _differentiate, setup_context=_keep)
