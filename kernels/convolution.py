"""Causal depthwise convolution over time, with the inputs that it still needs carried along."""

from collections.abc import Callable
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.backends import Candidate, Signature, asked_for, choose, record_backend
from kernels.compiling import constant
from kernels.gated_norm import kernels_run_on
from kernels.probing import disagreement

Backend = Literal["auto", "torch", "fla", "causal_conv1d", "triton"]


def causal_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    silu: bool = False,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """y_t[c] = bias[c] + sum over j of weight[c, j] x_{t - (W - 1) + j}[c]; the last tap sees x_t.

    Args:
        x: (B, T, C).   weight: (C, W).   bias: (C,) or None.
        state: (B, W - 1, C), the inputs before the first; zeros if None.
        reset: (B, T) bool; True where a document begins: earlier inputs count as zero.
        silu: whether y goes through SiLU.
        backend: "fla", "causal_conv1d" and "triton" (ours) need a GPU and compute what begins from
            no state, of them causal_conv1d alone with resets; the rest is torch's. "auto" takes the
            first that proves right there.
    Returns:
        y (B, T, C) and the last W - 1 inputs of the current document, (B, W - 1, C).
    Raises:
        ValueError: the backend's name is wrong.
        BackendUnavailable: a backend asked for by name did not prove right here.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    T, lags = x.shape[1], weight.shape[1] - 1
    if state is None and lags < T:
        sizes = (*weight.shape, int(bias is not None), int(silu), int(reset is not None))
        chosen = _choose(backend, x.device, x.dtype, sizes, x.shape[0], T)
        if chosen == "fla":
            from kernels.with_fla import causal_convolution_fla

            return causal_convolution_fla(x, weight, bias, silu=silu), x[:, T - lags :].clone()
        if chosen == "triton":
            from kernels.triton_convolution import convolution

            return convolution(x, weight, bias, silu=silu), x[:, T - lags :].clone()
        if chosen == "causal_conv1d":
            return _by_cuda(x, weight, bias, reset, silu=silu)
    y, last = _by_taps(x, weight, bias, state, reset)
    return F.silu(y) if silu else y, last


@constant
def _choose(
    backend: Backend,
    device: torch.device,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    batch: int,
    length: int,
) -> Backend:
    names = ("channels", "taps", "bias", "silu", "documents")
    signature = Signature(
        device=device, dtype=dtype, sizes=tuple(zip(names, sizes, strict=True)),
        batch=batch, length=length,
    )  # fmt: skip
    cuda = Candidate(name="causal_conv1d", probe=_probe_cuda)
    alone = Candidate(name="fla", probe=_probe_fla), cuda, Candidate(name="triton", probe=_probe)
    fast = (cuda,) if sizes[-1] else alone
    asked = asked_for("convolution", backend)
    if sizes[-1] and asked in ("fla", "triton"):
        record_backend("convolution", "torch", f"{asked} has no form for documents")
        return "torch"
    return cast(Backend, choose("convolution", backend, signature, fast=fast, plain="torch"))


def _probe_fla(signature: Signature) -> str | None:
    if signature.device.type != "cuda":
        return "its kernels need a GPU"
    from kernels.with_fla import causal_convolution_fla

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
        return causal_convolution_fla(x, weight, bias, silu=silu)

    return _compared(run, signature)


def _probe(signature: Signature) -> str | None:
    wanted = signature.device.type == "cuda" or asked_for("convolution", "auto") == "triton"
    if not (wanted and kernels_run_on(signature.device.type)):  # its interpreter is for tests
        return "its kernel needs a GPU of compute capability 8.0 or later, and triton"
    from kernels.triton_convolution import TAPS, convolution

    if (taps := dict(signature.sizes)["taps"]) > TAPS:
        return f"it takes {TAPS} taps at most, not {taps}"

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
        return convolution(x, weight, bias, silu=silu)

    return _compared(run, signature)


def _probe_cuda(signature: Signature) -> str | None:
    from kernels.with_causal_conv1d import why_not

    if (reason := why_not(signature)) is not None:
        return reason

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
        return _by_cuda(x, weight, bias, _probe_resets(x, signature), silu=silu)[0]

    return _compared(run, signature)


def _probe_resets(x: Tensor, signature: Signature) -> Tensor | None:
    """Documents of 67 tokens, if the signature has any."""
    if not dict(signature.sizes)["documents"]:
        return None
    return (torch.arange(x.shape[1], device=x.device) % 67 == 0).expand(len(x), -1)


def _compared(
    given: Callable[[Tensor, Tensor, Tensor | None, bool], Tensor], signature: Signature
) -> str | None:
    """A fast form beside the taps, on inputs that are a slice of a wider tensor, as in blocks."""
    sizes, generator = dict(signature.sizes), torch.Generator(signature.device).manual_seed(0)
    B, T, C = signature.batch, signature.length, sizes["channels"]
    silu = bool(sizes["silu"])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=signature.device)

    inputs = {"x": normal(B, T, C).to(signature.dtype), "weight": 0.5 * normal(C, sizes["taps"])}
    if sizes["bias"]:
        inputs["bias"] = normal(C)

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[Tensor]:
        return [given(F.pad(x, (0, 64))[..., :C], weight, bias, silu)]

    def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[Tensor]:
        y, _ = _by_taps(x, weight, bias, None, _probe_resets(x, signature))
        return [F.silu(y) if silu else y]

    shared = frozenset({"weight", "bias"})
    return disagreement(run, reference, inputs, signature, shared=shared)


def _by_cuda(
    x: Tensor, weight: Tensor, bias: Tensor | None, reset: Tensor | None, *, silu: bool
) -> tuple[Tensor, Tensor]:
    from kernels.with_causal_conv1d import causal_convolution_cuda

    last = x[:, x.shape[1] - weight.shape[1] + 1 :].clone()
    if reset is None:
        return causal_convolution_cuda(x, weight, bias, None, silu=silu), last
    document = reset.cumsum(dim=1, dtype=torch.int32)
    same = document[:, -last.shape[1] :] == document[:, -1:]
    return causal_convolution_cuda(x, weight, bias, document, silu=silu), last * same[..., None]


def _by_taps(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    B, T, _ = x.shape
    lags = weight.shape[1] - 1
    if state is None:
        padded = F.pad(x, (0, 0, lags, 0))
    else:
        padded = torch.cat([state.to(x.dtype), x], dim=1)
    document = None
    if reset is not None:  # the document of each padded position; those carried in have number 0
        document = torch.cat([reset.new_zeros(B, lags), reset], dim=1).cumsum(dim=1)
    weight = weight.to(x.dtype)
    y = x * weight[:, lags]
    for j in range(lags):
        tap = padded[:, j : j + T]
        if document is not None:
            same = document[:, j : j + T] == document[:, lags:]
            tap = tap * same[..., None]
        y = torch.addcmul(y, tap, weight[:, j])
    if bias is not None:
        y = y + bias.to(x.dtype)
    last = padded[:, T:]
    if document is not None:
        last = last * (document[:, T:] == document[:, -1:])[..., None]
    return y, last.clone()  # a view would keep the whole input alive
