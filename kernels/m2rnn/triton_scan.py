"""The Triton backend of `m2rnn_scan`: what it supports, how it is launched, its gradient.

Two torch.library operators, so that torch.compile keeps the graph whole. The forward operator keeps
the state at every C-th step; the backward operator rebuilds the rest in a scratch bounded in bytes.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# (kernel arguments are typed for the device)
import torch
import triton
from torch import Tensor

from kernels.m2rnn import fast_scan
from kernels.m2rnn.triton_forward import scan_forward
from kernels.m2rnn.triton_launch import (
    SCRATCH_BYTES,
    interpreted,
    kernel_options,
    layout_arguments,
    plan,
    run_step,
    run_sweep,
    strided,
)

MAX_KEY, MAX_VALUE = 256, 64
MAX_DELTA = 2048
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def unsupported(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    state: Tensor,
    *,
    gate_weight: Tensor | None,
    nonlinearity: str,
    write: str,
    clip: str,
    reset: Tensor | None,
) -> str | None:
    """Why the Triton kernels cannot run this, or None if they can."""
    del gate_weight, nonlinearity, clip, reset, key, weight
    if interpreted():
        if query.device.type != "cpu":
            return "TRITON_INTERPRET=1 runs kernels on the CPU; unset it or move the tensors there"
    elif query.device.type != "cuda":
        return f"the tensors are on {query.device.type}, and the kernels run on CUDA"
    elif _capability(query.device.index) < (8, 0):
        return "the GPU is older than compute capability 8.0, which bfloat16 matrix products need"
    for name, x in (("query", query), ("value", value), ("forget", forget), ("state", state)):
        if x.dtype not in DTYPES:
            return f"{name} is {x.dtype}; the kernels take float32, bfloat16 and float16"
    if query.shape[3] > MAX_KEY or value.shape[3] > MAX_VALUE:
        return f"K={query.shape[3]}, V={value.shape[3]}; they reach to K={MAX_KEY}, V={MAX_VALUE}"
    padded = plan(1, query.shape[3], value.shape[3], delta=True)
    if write == "delta" and padded.BK * padded.BV > MAX_DELTA:
        return f"the delta write needs a whole head in registers, K V at most {MAX_DELTA} (padded)"
    return None


@torch.compiler.assume_constant_result
def _capability(index: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def m2rnn_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    state: Tensor,
    *,
    gate_weight: Tensor | None,
    nonlinearity: str,
    write: str,
    clip: str,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`m2rnn_scan` on Triton. Arguments and results as there; the state is kept in float32.

    Under autocast query, key and value take its dtype; the gate, the state and W keep theirs.
    With 16-bit inputs the matrix products round their operands to bfloat16; with float32 inputs
    nothing is rounded.
    """
    dtype = value.dtype
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    keep = None if reset is None else (~reset).to(torch.float32)
    inputs = (query, key, value, forget, weight, state, gate_weight)
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    output, last, _ = forward(*inputs, keep, nonlinearity, write == "delta", clip, save)
    return output, last


@torch.library.custom_op("arch_search::m2rnn_forward", mutates_args=())
def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    state: Tensor,
    gate_weight: Tensor | None,
    keep: Tensor | None,
    phi: str,
    delta: bool,
    clip: str,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, last state, and the state before every C-th step (empty unless `save`)."""
    query, key, value = strided(query), strided(key), strided(value)
    if query.shape[1] == 1 and not save:
        return run_step(query, key, value, forget, weight, state, gate_weight, keep, phi, delta)
    if fast_scan.covers(query, value, gate_weight, phi, delta):
        weight = None if weight is None else weight.contiguous()
        return fast_scan.run_forward(query, key, value, forget, weight, state, keep, phi, save)
    B, T, _, K = query.shape
    N, V = state.shape[1], value.shape[3]
    cut = plan(N, K, V, delta=delta)
    # one tile writes y as it is; several leave float32 partials to be summed
    partial = value.dtype if cut.tiles == 1 else torch.float32
    output = value.new_empty(cut.tiles, B, T, N, V, dtype=partial)
    last = state.new_empty(B, N, K, V, dtype=torch.float32)
    chunks = triton.cdiv(T, cut.C) if save else 0
    borders = state.new_empty(B, chunks, N, K, V, dtype=torch.float32)
    dummy = last
    with torch.cuda.device_of(query):
        scan_forward[(N, B, cut.tiles)](
            query, key, value, forget,
            dummy if weight is None else weight.contiguous(),
            state.float().contiguous(),
            dummy if gate_weight is None else gate_weight.contiguous(),
            dummy if keep is None else keep.contiguous(),
            output, last, borders, T, N, *layout_arguments(query, key, value, forget, weight, N),
            SAVE=save,
            **kernel_options(cut, query, value, weight, gate_weight, keep, phi, delta),
        )  # fmt: skip
    output = output[0] if cut.tiles == 1 else output.sum(0).to(value.dtype)
    return output, last, borders


@forward.register_fake
def _(query, key, value, forget, weight, state, gate_weight, keep, phi, delta, clip, save):
    B, T, _, K = query.shape
    N, V = state.shape[1], value.shape[3]
    if T == 1 and not save:
        kept = state.new_empty(0, dtype=torch.float32)
        return value.new_empty(B, 1, N, V), state.new_empty(B, N, K, V, dtype=torch.float32), kept
    fast = fast_scan.covers(query, value, gate_weight, phi, delta)
    step = fast_scan.BORDER if fast else plan(N, K, V, delta=delta).C
    kept = torch.bfloat16 if fast else torch.float32
    return (
        value.new_empty(B, T, N, V),
        state.new_empty(B, N, K, V, dtype=torch.float32),
        state.new_empty(B, -(-T // step) if save else 0, N, K, V, dtype=kept),
    )


@torch.library.custom_op("arch_search::m2rnn_backward", mutates_args=())
def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    gate_weight: Tensor | None,
    keep: Tensor | None,
    borders: Tensor,
    grad_output: Tensor,
    grad_last: Tensor,
    phi: str,
    delta: bool,
    clip: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, forget, weight, state, gate_weight (float32 for the last 3;
    empty for a weight that is not there)."""
    query, key, value = strided(query), strided(key), strided(value)
    if fast_scan.covers(query, value, gate_weight, phi, delta):
        weight = None if weight is None else weight.contiguous()
        grads = fast_scan.run_backward(
            query, key, value, forget, weight, keep, borders, grad_output, grad_last, phi, clip
        )
        return (*grads, grads[-1].new_empty(0))
    B, K = query.shape[0], query.shape[3]
    N, V = grad_last.shape[1], value.shape[3]
    cut = plan(N, K, V, delta=delta)
    options = kernel_options(cut, query, value, weight, gate_weight, keep, phi, delta)
    grads = [torch.empty_like(x, memory_format=torch.contiguous_format)
             for x in (query, key, value, forget)]  # fmt: skip
    carry = grad_last.float().clone(memory_format=torch.contiguous_format)
    square = () if weight is None else weight.shape[1:]
    dw = carry.new_zeros(cut.tiles, B, N, *square) if weight is not None else carry.new_zeros(0)
    du = carry.new_zeros(cut.tiles, B, N, V) if gate_weight is not None else carry.new_zeros(0)
    weight = weight if weight is None else weight.contiguous()
    grad_output = grad_output.contiguous()
    wide = max(1, SCRATCH_BYTES // (N * cut.tile_bytes * cut.C))  # sequences in one launch
    for b in range(0, B, wide):
        some = slice(b, min(b + wide, B))
        dw_some, du_some = (x[:, some].contiguous() if x.numel() else x for x in (dw, du))
        tensors = (
            query[some], key[some], value[some], forget[some], weight, gate_weight,
            None if keep is None else keep[some], grad_output[some], borders[some], carry[some],
            dw_some, du_some,
        )  # fmt: skip
        run_sweep(cut, options, clip, tensors, [g[some] for g in grads])
        if dw.numel():
            dw[:, some] = dw_some
        if du.numel():
            du[:, some] = du_some
    d_weight = carry.new_empty(0)
    if weight is not None:
        d_weight = dw.sum((0, 1)).unflatten(0, (weight.shape[0], -1)).sum(1)
    d_gate_weight = carry.new_empty(0) if gate_weight is None else du.sum((0, 1))
    return (*grads, d_weight, carry, d_gate_weight)  # type: ignore[return-value]


@backward.register_fake
def _(
    query, key, value, forget, weight, gate_weight, keep, borders, dy, grad_last, phi, delta, clip
):
    absent = grad_last.new_empty(0, dtype=torch.float32)
    like = [x.new_empty(x.shape) for x in (query, key, value, forget)]
    dw, du = (absent.new_empty(0 if x is None else x.shape) for x in (weight, gate_weight))
    return (*like, dw, absent.new_empty(grad_last.shape), du)


def _setup_context(ctx, inputs, output) -> None:
    query, key, value, forget, weight, state, gate_weight, keep, phi, delta, clip, _ = inputs
    ctx.save_for_backward(query, key, value, forget, weight, gate_weight, keep, output[2])
    ctx.phi, ctx.delta, ctx.clip, ctx.state_dtype = phi, delta, clip, state.dtype
    ctx.last_shape = output[1].shape
    ctx.set_materialize_grads(False)


def _gradient(ctx, grad_output: Tensor | None, grad_last: Tensor | None, _):
    query, key, value, forget, weight, gate_weight, keep, borders = ctx.saved_tensors
    B, N, _, V = ctx.last_shape
    if grad_output is None:
        grad_output = value.new_zeros(B, value.shape[1], N, V)
    if grad_last is None:
        grad_last = value.new_zeros(ctx.last_shape, dtype=torch.float32)
    dq, dk, dv, df, dw, dh, du = backward(
        query, key, value, forget, weight, gate_weight, keep, borders, grad_output, grad_last,
        ctx.phi, ctx.delta, ctx.clip,
    )  # fmt: skip
    dw = None if weight is None else dw.to(weight.dtype)
    du = None if gate_weight is None else du.to(gate_weight.dtype)
    return dq, dk, dv, df, dw, dh.to(ctx.state_dtype), du, None, None, None, None, None


forward.register_autograd(_gradient, setup_context=_setup_context)
