"""RNN, GRU and LSTM scans: one signature each, checked once, over their backends."""

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from kernels.backends import asked_for, record_backend
from kernels.errors import BackendUnavailable
from kernels.m2rnn.reference import Clip
from kernels.rnn import reference, torch_scan

Backend = Literal["auto", "loop", "torch", "triton"]


def rnn_scan(
    x: Tensor,
    weight: Tensor,
    state: Tensor | None = None,
    *,
    clip: Clip = "none",
    reset: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Scan h_t = tanh(h_{t-1} W + x_t) for independent heads.

    Args:
        x: (B, T, N, V).   weight: (N, V, V).   state: (B, N, V); zeros if None.
        clip: what of the state's gradient is clamped to [-1, 1] at each step: "carry", the part
            that comes from later steps; "sum", that and the output's; "none".
        reset: (B, T) bool; True where a document begins: the state before that token is zero.
        backend: "loop" is the truth; "torch" has a hand-written backward; "triton" needs a GPU;
            "auto" takes Triton on CUDA if it supports the case, else torch, and records its choice.
    Returns:
        every h (B, T, N, V) in x's dtype and the last (B, N, V), float32 (float64 if x is).
    Raises:
        ValueError: a shape or a name is wrong; says which, what came and what was expected.
        BackendUnavailable: a backend asked for by name cannot run this here.
    """
    B, T, N, V = _four(x, "x")
    state = _zeros(x, V) if state is None else state
    tensors = {"x": x, "weight": weight, "state": state}
    shapes = {"weight": (N, V, V), "state": (B, N, V), "reset": (B, T)}
    y, h = _dispatch("rnn", tensors, shapes, clip, reset, backend)
    return y, h


def gru_scan(
    x: Tensor,
    forget: Tensor,
    recall: Tensor,
    weight: Tensor,
    forget_weight: Tensor,
    recall_weight: Tensor,
    state: Tensor | None = None,
    *,
    clip: Clip = "none",
    reset: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Scan the GRU for independent heads; `recall` feeds what is usually called its reset gate.

    r = σ(h W_r + recall_t);  f = σ(h W_f + forget_t);  z = tanh((r ⊙ h) W + x_t)
    h_t = f ⊙ h_{t-1} + (1 - f) ⊙ z

    Args:
        x, forget, recall: (B, T, N, V).   weight, forget_weight, recall_weight: (N, V, V).
        state, clip, reset, backend: as in `rnn_scan`, which see for what is returned and raised.
    """
    B, T, N, V = _four(x, "x")
    state = _zeros(x, V) if state is None else state
    tensors = {
        "x": x, "forget": forget, "recall": recall, "weight": weight,
        "forget_weight": forget_weight, "recall_weight": recall_weight, "state": state,
    }  # fmt: skip
    shapes = dict.fromkeys(("weight", "forget_weight", "recall_weight"), (N, V, V))
    shapes |= dict.fromkeys(("forget", "recall"), (B, T, N, V))
    y, h = _dispatch(
        "gru", tensors, shapes | {"state": (B, N, V), "reset": (B, T)}, clip, reset, backend
    )
    return y, h


def lstm_scan(
    gates: Tensor,
    weight: Tensor,
    hidden: Tensor | None = None,
    cell: Tensor | None = None,
    *,
    clip: Clip = "none",
    reset: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan the LSTM for independent heads (Hochreiter and Schmidhuber 1997, with a forget gate).

    (i, f, o, g) = h W + gates_t;  c_t = σ(f) ⊙ c_{t-1} + σ(i) ⊙ tanh(g);  h_t = σ(o) ⊙ tanh(c_t)

    Args:
        gates: (B, T, N, 4 V).   weight: (N, V, 4 V).   hidden, cell: (B, N, V); zeros if None.
        clip, reset, backend: as in `rnn_scan`; the cell's carried gradient is clamped as well.
    Returns:
        every h (B, T, N, V), the last h and the last c (B, N, V).
    """
    B, T, N, X = _four(gates, "gates")
    if X % 4:
        raise ValueError(f"gates has shape {tuple(gates.shape)}; its last axis must be 4 V")
    V = X // 4
    hidden = _zeros(gates, V) if hidden is None else hidden
    cell = _zeros(gates, V) if cell is None else cell
    tensors = {"gates": gates, "weight": weight, "hidden": hidden, "cell": cell}
    shapes = {"weight": (N, V, X), "hidden": (B, N, V), "cell": (B, N, V), "reset": (B, T)}
    y, h, c = _dispatch("lstm", tensors, shapes, clip, reset, backend)
    return y, h, c


def _four(x: Tensor, name: str) -> torch.Size:
    if x.ndim != 4 or x.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (B, T, N, V) with T > 0")
    return x.shape


def _zeros(x: Tensor, size: int) -> Tensor:
    return x.new_zeros(x.shape[0], x.shape[2], size, dtype=_wide(x))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _dispatch(
    kernel: str,
    tensors: dict[str, Tensor],
    shapes: dict[str, tuple[int, ...]],
    clip: Clip,
    reset: Tensor | None,
    backend: Backend,
) -> tuple[Tensor, ...]:
    for name, x in (tensors | {"reset": reset}).items():
        if x is not None and name in shapes and tuple(x.shape) != shapes[name]:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {shapes[name]}")
    for name, given, allowed in (
        ("clip", clip, get_args(Clip)),
        ("backend", backend, get_args(Backend)),
    ):
        if given not in allowed:
            raise ValueError(f"{name} is {given!r}; expected one of {', '.join(allowed)}")
    first = next(iter(tensors.values()))
    backend = cast(Backend, asked_for(kernel, backend))
    chosen = _choose(kernel, backend, tensors, clip, reset)
    record_backend(kernel, chosen)
    if chosen == "triton":
        from kernels.rnn import triton_scan

        return getattr(triton_scan, f"{kernel}_triton")(*tensors.values(), clip=clip, reset=reset)
    module: Any = reference if chosen == "loop" else torch_scan
    run = getattr(module, f"{kernel}_{chosen}")
    with torch.autocast(first.device.type, enabled=False):
        wide = [x.to(_wide(first)) for x in tensors.values()]
        y, *state = run(*wide, clip=clip, reset=reset)
    return y.to(first.dtype), *state


def _choose(
    kernel: str, backend: Backend, tensors: dict[str, Tensor], clip: Clip, reset: Tensor | None
) -> Backend:
    if backend == "auto" and next(iter(tensors.values())).device.type != "cuda":
        return "torch"
    if backend not in ("auto", "triton"):
        return backend
    try:
        from kernels.rnn.triton_scan import unsupported

        reason = unsupported(kernel, *tensors.values(), clip=clip, reset=reset)
    except ImportError as error:
        reason = f"{error.name or 'a module'} cannot be imported ({error})"
    if reason is None:
        return "triton"
    if backend == "auto":
        return "torch"
    raise BackendUnavailable(
        f"{kernel}_scan cannot run on the triton backend: {reason}. Use backend='auto' or 'torch'"
    )
