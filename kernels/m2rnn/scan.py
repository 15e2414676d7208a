"""The M²RNN scan: one signature, checked once, over the loop, torch and Triton backends."""

from typing import Literal, cast, get_args

import torch
from torch import Tensor

from kernels.backends import asked_for, record_backend
from kernels.errors import BackendUnavailable
from kernels.m2rnn.reference import Clip, Nonlinearity, Write, m2rnn_loop
from kernels.m2rnn.torch_scan import m2rnn_torch

Backend = Literal["auto", "loop", "torch", "triton"]


def m2rnn_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    state: Tensor | None = None,
    *,
    gate_weight: Tensor | None = None,
    nonlinearity: Nonlinearity = "tanh",
    write: Write = "outer",
    clip: Clip = "none",
    reset: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Scan the M²RNN recurrence over time (arXiv 2603.14360, Eq. 10-12).

    Z_t = phi(H_{t-1} W + k_t v_tᵀ);  H_t = f_t H_{t-1} + (1 - f_t) Z_t;  y_t = H_tᵀ q_t

    N is the largest head count among query, key, value, forget and weight; the others divide it,
    and head n reads group n // (N / Nx), as in grouped-query attention.

    Args:
        query: (B, T, Nq, K).   key: (B, T, Nk, K).   value: (B, T, Nv, V).
        forget: (B, T, Nf) in [0, 1]; 1 keeps the old state. With `gate_weight`, its pre-activation.
        weight: W as (Nw, V, V), its diagonal as (Nw, V), or None for the identity.
        state: (B, N, K, V); zeros if None.
        gate_weight: u as (N, V), the state gate f_t[k] = sigmoid(forget_t + H_{t-1}[k, :] · u_n).
        nonlinearity: phi; "norm_clip" scales each row of the pre-activation to norm at most 1.
        write: "outer" writes v_t; "delta" writes v_t - H_{t-1}ᵀ k_t.
        clip: what of the state's gradient is clamped to [-1, 1] at each step: "carry", the part
            that comes from later steps; "sum", that and the readout's; "none".
        reset: (B, T) bool; True where a document begins: the state before that token is zero.
        backend: "loop" is the truth; "torch" has a hand-written backward; "triton" needs a GPU;
            "auto" takes Triton on CUDA if it supports the case, else torch, and records its choice.
    Returns:
        output (B, T, N, V) in value's dtype, and the last state (B, N, K, V) in float32 (float64 if
        an input is float64).
    Raises:
        ValueError: a shape or a name is wrong; says which, what came and what was expected.
        BackendUnavailable: a backend asked for by name cannot run this here.
    """
    heads = _check(query, key, value, forget, weight, state, gate_weight, reset)
    for name, given, allowed in (
        ("nonlinearity", nonlinearity, get_args(Nonlinearity)),
        ("write", write, get_args(Write)),
        ("clip", clip, get_args(Clip)),
        ("backend", backend, get_args(Backend)),
    ):
        if given not in allowed:
            raise ValueError(f"{name} is {given!r}; expected one of {', '.join(allowed)}")
    modes = {
        "gate_weight": gate_weight, "nonlinearity": nonlinearity, "write": write,
        "clip": clip, "reset": reset,
    }  # fmt: skip
    if state is None:
        dtype = scan_dtype(query, key, value, forget)
        state = query.new_zeros(query.shape[0], heads, query.shape[3], value.shape[3], dtype=dtype)
    inputs = (query, key, value, forget, weight, state)
    backend, why = _choose(cast(Backend, asked_for("m2rnn", backend)), inputs, modes)
    record_backend("m2rnn", backend, why)
    if backend == "triton":
        from kernels.m2rnn.triton_scan import m2rnn_triton

        return m2rnn_triton(*inputs, **modes)
    run = m2rnn_loop if backend == "loop" else m2rnn_torch
    return run_expanded(run, inputs, modes, heads)


def scan_dtype(*tensors: Tensor) -> torch.dtype:
    """The state's dtype: float32, or float64 if any tensor is."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def expand_heads(x: Tensor, heads: int, dim: int) -> Tensor:
    """Repeat each group along `dim` so that there are `heads`; head n reads n // (heads / Nx)."""
    return x if x.shape[dim] == heads else x.repeat_interleave(heads // x.shape[dim], dim=dim)


def run_expanded(run, inputs: tuple, modes: dict, heads: int) -> tuple[Tensor, Tensor]:
    """A scan in torch, with every head spelled out and in the state's dtype."""
    query, key, value, forget, weight, state = inputs
    dtype = scan_dtype(query, key, value, forget, state)
    with torch.autocast(query.device.type, enabled=False):
        q, k, v, f = (expand_heads(x.to(dtype), heads, 2) for x in (query, key, value, forget))
        w = None if weight is None else expand_heads(weight.to(dtype), heads, 0)
        if modes["gate_weight"] is not None:
            modes = {**modes, "gate_weight": modes["gate_weight"].to(dtype)}
        output, last = run(q, k, v, f, w, state.to(dtype), **modes)
    return output.to(value.dtype), last


def _choose(backend: Backend, inputs: tuple, modes: dict) -> tuple[Backend, str]:
    """The backend to run on, and why that one."""
    if backend == "auto" and inputs[0].device.type != "cuda":
        return "torch", ""
    if backend not in ("auto", "triton"):
        return backend, "asked for"
    reason = _why_not_triton(inputs, modes)
    if reason is None:
        return "triton", "agrees with the reference" if inputs[0].is_cuda else ""
    if backend == "auto":
        return "torch", f"triton: {reason}"
    raise BackendUnavailable(
        f"m2rnn_scan cannot run on the triton backend: {reason}. Use backend='auto' or 'torch'"
    )


def _why_not_triton(inputs: tuple, modes: dict) -> str | None:
    try:
        from kernels.m2rnn.triton_scan import unsupported
    except ImportError as error:
        return f"{error.name or 'a module'} cannot be imported ({error})"
    reason = unsupported(*inputs, **modes)
    if reason is None and inputs[0].is_cuda:
        from kernels.m2rnn.proving import why_wrong

        reason = why_wrong(inputs, modes)
    return reason


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    state: Tensor | None,
    gate_weight: Tensor | None,
    reset: Tensor | None,
) -> int:
    """Check every shape against query's (B, T, K) and value's V; returns N."""
    for name, x, form in (
        ("query", query, "(B, T, Nq, K)"),
        ("key", key, "(B, T, Nk, K)"),
        ("value", value, "(B, T, Nv, V)"),
        ("forget", forget, "(B, T, Nf)"),
    ):
        if x.ndim != form.count(",") + 1:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {form}")
    B, T, _, K = query.shape
    V = value.shape[3]
    if T == 0:
        raise ValueError("query has no time steps: T is 0")
    if weight is not None and weight.ndim not in (2, 3):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}; expected (Nw, V, V), (Nw, V) or None"
        )
    counts = {
        "query": query.shape[2], "key": key.shape[2], "value": value.shape[2],
        "forget": forget.shape[2],
    }  # fmt: skip
    if weight is not None:
        counts["weight"] = weight.shape[0]
    N = max(counts.values())
    for name, count in counts.items():
        if count == 0 or N % count:
            raise ValueError(f"{name} has {count} heads, which does not divide the largest, {N}")
    expected: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("key", key, (B, T, counts["key"], K)),
        ("value", value, (B, T, counts["value"], V)),
        ("forget", forget, (B, T, counts["forget"])),
        ("state", state, (B, N, K, V)),
        ("gate_weight", gate_weight, (N, V)),
        ("reset", reset, (B, T)),
    ]
    if weight is not None:
        expected.append(("weight", weight, (counts["weight"], *[V] * (weight.ndim - 1))))
    for name, x, shape in expected:
        if x is not None and tuple(x.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; expected {shape} "
                f"for B={B}, T={T}, N={N}, K={K}, V={V}"
            )
    if reset is not None and reset.dtype != torch.bool:
        raise ValueError(f"reset has dtype {reset.dtype}; expected torch.bool")
    return N
