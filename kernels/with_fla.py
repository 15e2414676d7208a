"""flash-linear-attention's kernels, as operators that torch.compile can look past.

Its public functions stop the compiler; its forward and backward passes, wrapped here, do not, and
leave norms, gates and convolutions around them to be fused by it. Tested with fla 0.6.
"""

from typing import Any, cast

import torch
from torch import Tensor

from kernels.backends import Signature

CHUNK = 64  # fla's, and the last axis of what it keeps for the backward pass
MAX_KEY_SIZE = 256
RESET_LOG_DECAY = -100.0  # exp of it is 0 in what follows; -inf would be NaN in differences


def why_not(signature: Signature) -> str | None:
    """What rules fla's gated delta rule out before it is tried."""
    sizes = dict(signature.sizes)
    if signature.device.type != "cuda":
        return "its kernels need a GPU"
    if signature.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it has no kernel for {signature.dtype}"
    if sizes["K"] > MAX_KEY_SIZE:
        return f"head size K is {sizes['K']}; its kernels take at most {MAX_KEY_SIZE}"
    return None


def gated_delta_fla(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule; arguments and results as of `kernels.gated_delta.gated_delta`."""
    log_decay, beta = log_decay.float(), beta.float()
    if reset is not None:
        log_decay = log_decay.masked_fill(reset[..., None], RESET_LOG_DECAY)
    query, key = query.to(value.dtype), key.to(value.dtype)
    inputs = [x.contiguous() for x in (query, key, value, log_decay, beta)]
    # fla's own layers keep V first, so that way round its kernels are tuned and tested most
    start = None if state is None else state.float().mT.contiguous()
    output, last, _, _ = torch.ops.arch_search.fla_gated_delta(*inputs, start)
    return output, last.mT


def _forward(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Any
) -> tuple[Any, ...]:
    """Output, last state, and for the backward pass the summed log-decays and solved chunks."""
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_fwd  # pyright: ignore[reportMissingImports]

    total, output, solved, last, _, _ = chunk_gated_delta_rule_fwd(
        q=query, k=key, v=value, g=log_decay, beta=beta, scale=1.0, initial_state=state,
        output_final_state=True, chunk_size=CHUNK, state_v_first=True,
    )  # fmt: skip
    return output.contiguous(), last, total, solved


def _backward(
    query: Tensor, key: Tensor, value: Tensor, total: Tensor, beta: Tensor, solved: Tensor,
    state: Any, grad_output: Tensor, grad_last: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_bwd  # pyright: ignore[reportMissingImports]

    dq, dk, dv, db, dg, dstate, _, _ = chunk_gated_delta_rule_bwd(
        q=query, k=key, v=value, g=total, beta=beta, A=solved, scale=1.0, initial_state=state,
        do=grad_output.contiguous(), dht=grad_last.contiguous(), chunk_size=CHUNK,
        state_v_first=True,
    )  # fmt: skip
    dstate = query.new_empty(0, dtype=torch.float32) if dstate is None else dstate
    grads = (dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), dg.float(), db.float())
    return (*(grad.contiguous() for grad in grads), dstate)


_forward_op = torch.library.custom_op(
    "arch_search::fla_gated_delta",
    _forward,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor log_decay, Tensor beta, "
    "Tensor? state) -> (Tensor, Tensor, Tensor, Tensor)",
)
_backward_op = torch.library.custom_op(
    "arch_search::fla_gated_delta_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor total, Tensor beta, Tensor solved, "
    "Tensor? state, Tensor grad_output, Tensor grad_last) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_forward_op.register_fake
def _(query, key, value, log_decay, beta, state):
    B, T, N, K = query.shape
    last = value.new_empty(B, N, value.shape[-1], K, dtype=torch.float32)
    return (
        torch.empty_like(value, memory_format=torch.contiguous_format), last,
        torch.empty_like(log_decay), key.new_empty(B, T, N, CHUNK),
    )  # fmt: skip


@_backward_op.register_fake
def _(query, key, value, total, beta, solved, state, grad_output, grad_last):
    kept = query.new_empty(0, dtype=torch.float32) if state is None else torch.empty_like(state)
    return (*(torch.empty_like(x) for x in (query, key, value, total, beta)), kept)


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    query, key, value, _, beta, state = inputs
    _, _, total, solved = output
    ctx.save_for_backward(query, key, value, total, beta, solved, state)


def _differentiate(ctx: Any, grad_output: Tensor, grad_last: Tensor, _total: Any, _solved: Any):
    *grads, dstate = torch.ops.arch_search.fla_gated_delta_backward(
        *ctx.saved_tensors, grad_output, grad_last
    )
    return (*grads, dstate if ctx.saved_tensors[-1] is not None else None)


torch.library.register_autograd("arch_search::fla_gated_delta", _differentiate, setup_context=_keep)


def causal_convolution_fla(x: Tensor, weight: Tensor, bias: Tensor | None, *, silu: bool) -> Tensor:
    """y (B, T, C) of `kernels.convolution.causal_convolution`, from no state; x may be a slice."""
    return torch.ops.arch_search.fla_convolution(x, weight.contiguous(), bias, silu)


def _convolve(x: Tensor, weight: Tensor, bias: Any, silu: bool) -> Tensor:
    from fla.modules.causal_conv1d.ops import causal_conv1d_fwd  # pyright: ignore[reportMissingImports]

    forward = cast(Any, causal_conv1d_fwd)
    activation = "silu" if silu else None
    y, _ = forward(x=x, weight=weight, bias=bias, residual=None, activation=activation)
    return y


def _convolve_backward(
    x: Tensor, weight: Tensor, bias: Any, grad: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from fla.modules.causal_conv1d.ops import causal_conv1d_bwd  # pyright: ignore[reportMissingImports]

    backward = cast(Any, causal_conv1d_bwd)
    activation = "silu" if silu else None
    dx, dw, db, _, _ = backward(
        x=x, dy=grad.contiguous(), dht=None, weight=weight, bias=bias, activation=activation
    )
    db = x.new_empty(0) if db is None else db
    return dx.contiguous(), dw.contiguous(), db


_convolve_op = torch.library.custom_op(
    "arch_search::fla_convolution",
    _convolve,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, bool silu) -> Tensor",
)
_convolve_backward_op = torch.library.custom_op(
    "arch_search::fla_convolution_backward",
    _convolve_backward,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor grad, bool silu) "
    "-> (Tensor, Tensor, Tensor)",
)


@_convolve_op.register_fake
def _(x, weight, bias, silu):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_convolve_backward_op.register_fake
def _(x, weight, bias, grad, silu):
    db = x.new_empty(0) if bias is None else torch.empty_like(bias)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, torch.empty_like(weight), db


def _keep_inputs(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x, weight, bias, ctx.silu = inputs
    ctx.save_for_backward(x, weight, bias)


def _differentiate_convolution(ctx: Any, grad: Tensor):
    x, weight, bias = ctx.saved_tensors
    dx, dw, db = torch.ops.arch_search.fla_convolution_backward(x, weight, bias, grad, ctx.silu)
    return dx, dw, None if bias is None else db, None


torch.library.register_autograd(
    "arch_search::fla_convolution", _differentiate_convolution, setup_context=_keep_inputs
)
