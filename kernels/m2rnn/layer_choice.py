"""Whether an M²RNN layer runs as one operator between its projections: if it proves right here."""

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.backends import Candidate, Signature, asked_for, choose
from kernels.compiling import constant
from kernels.gated_norm import LARGEST, kernels_run_on
from kernels.m2rnn.proving import KINKED, LOOSER
from kernels.normalisation import rms_norm
from kernels.probing import disagreement

if TYPE_CHECKING:
    from kernels.m2rnn.layer import Widths

LENGTH = 96  # tokens to prove it on: our kernels tune nothing by length
EPS = 1e-5
PARTS = ("m2rnn", "convolution")  # who asks for a backend of one gets the layer in parts


@constant
def runs_whole(
    device: torch.device, dtype: torch.dtype, sizes: tuple[int, ...], modes: tuple[str, str, str],
    batch: int, length: int,
) -> bool:  # fmt: skip
    """Asked for or chosen: see `kernels.backends.choose`.

    Args:
        sizes: Nq, Nk, N, K, V, Nf; the convolution's taps; Nw; whether there is a residual (0, 1).
        modes: of W (dense, diagonal, identity), the nonlinearity and the clip.
    Raises:
        BackendUnavailable: "whole" was asked for and did not prove right.
    """
    asked = asked_for("m2rnn_layer", "auto")
    if asked == "auto" and device.type != "cuda":
        return False  # not worth a word in the run's record
    if asked == "auto" and any(asked_for(k, "auto") not in ("auto", "triton") for k in PARTS):
        return False
    names = ("Nq", "Nk", "N", "K", "V", "Nf", "taps", "Nw", "residual")
    kinds = zip(("W", "phi", "clip"), modes, strict=True)
    marks = [(f"{kind} {mode}", 1) for kind, mode in kinds]
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from kernels.m2rnn.fast_scan import fills_the_gpu  # such batches run with wider tiles

        marks.append(("wide", int(fills_the_gpu(batch, *sizes[2:5]))))
    signature = Signature(
        device=device, dtype=dtype, sizes=(*zip(names, sizes, strict=True), *marks),
        batch=batch, length=length,
    )  # fmt: skip

    def probe(signature: Signature) -> str | None:
        return compare(signature, modes)

    fast = (Candidate(name="whole", probe=probe),)
    return choose("m2rnn_layer", "auto", signature, fast=fast, plain="parts") == "whole"


def compare(signature: Signature, modes: tuple[str, str, str]) -> str | None:
    """None if the operator's output and gradients are those of torch's operations."""
    sizes = dict(signature.sizes)
    if not kernels_run_on(signature.device.type):
        return "its kernels need a GPU of compute capability 8.0 or later, and triton"
    if sizes["N"] * sizes["V"] > LARGEST:
        return f"the norm spans {sizes['N'] * sizes['V']} channels; its kernel takes {LARGEST}"
    return against_torch(signature, modes)


def against_torch(signature: Signature, modes: tuple[str, str, str]) -> str | None:
    """What `disagreement` says of the operator, on random inputs."""
    from kernels.m2rnn.layer import Widths, m2rnn_layer

    Nq, Nk, N, K, V, Nf, taps, Nw, has_residual = (n for _, n in signature.sizes[:9])
    widths = Widths(query_heads=Nq, key_heads=Nk, heads=N, K=K, V=V, forget_heads=Nf)
    device, generator = signature.device, torch.Generator(signature.device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    B = signature.batch
    made = {
        "projected": normal(B, LENGTH, sum(widths.parts)).to(signature.dtype),
        "taps": 0.5 * normal(sum(widths.channels), taps),
        "A_log": 0.3 * normal(Nf),
        "dt_bias": normal(Nf) - 1,
        "norm": 1 + 0.1 * normal(N * V),
    }
    if modes[0] != "identity":
        shape = (Nw, V, V) if modes[0] == "dense" else (Nw, V)
        half = 0.5 * torch.eye(V, device=device) if modes[0] == "dense" else 0.5
        made["weight"] = half + 0.1 * V**-0.5 * normal(*shape)
    if has_residual:
        made["residual"] = 1 + 0.1 * normal(N, V)
    shared = frozenset(made) - {"projected"}

    def run(**x: Tensor) -> tuple[Tensor, Tensor]:
        given = {"weight": None, "residual": None, **x}
        return m2rnn_layer(**given, widths=widths, nonlinearity=modes[1], clip=modes[2], eps=EPS)  # type: ignore[arg-type]

    def reference(**x: Tensor) -> tuple[Tensor, Tensor]:
        given = {"weight": None, "residual": None, **x}
        return layer_in_torch(**given, widths=widths, nonlinearity=modes[1], clip=modes[2])

    small = Signature(
        device=device, dtype=signature.dtype, sizes=signature.sizes, batch=B, length=LENGTH
    )
    looser = LOOSER if modes[1] in KINKED else 1.0
    return disagreement(run, reference, made, small, shared=shared, looser=looser)


def layer_in_torch(
    projected: Tensor, taps: Tensor, A_log: Tensor, dt_bias: Tensor, weight: Tensor | None,
    residual: Tensor | None, norm: Tensor, *, widths: "Widths", nonlinearity: Any, clip: Any,
    eps: float = EPS,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`kernels.m2rnn.layer.m2rnn_layer` in torch's operations, in the projection's dtype."""
    from kernels.m2rnn.scan import run_expanded
    from kernels.m2rnn.torch_scan import m2rnn_torch

    mixed, gate, a, _ = projected.split(widths.parts, dim=-1)
    lags = taps.shape[1] - 1
    padded = F.pad(mixed.mT, (lags, 0))
    qkv = F.silu(F.conv1d(padded, taps[:, None], groups=len(taps)).mT)
    sizes = zip(qkv.split(widths.channels, dim=-1), (widths.K, widths.K, widths.V), strict=True)
    q, k, v = (part.unflatten(-1, (-1, size)) for part, size in sizes)
    f = torch.exp(-A_log.exp() * F.softplus(a + dt_bias))
    start = q.new_zeros(len(q), widths.heads, widths.K, widths.V)
    modes = {"nonlinearity": nonlinearity, "write": "outer", "clip": clip, "gate_weight": None}
    inputs = (q, k, v, f, weight, start)
    y, last = run_expanded(m2rnn_torch, inputs, {**modes, "reset": None}, widths.heads)
    if residual is not None:
        y = y + residual * v
    return rms_norm(y.flatten(2) * F.silu(gate), norm, eps), last
