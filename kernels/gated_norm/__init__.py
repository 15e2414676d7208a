"""Value residual, SiLU gate and RMSNorm behind a recurrence: whether one kernel can do them."""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from kernels.backends import Candidate, Signature, asked_for, choose
from kernels.compiling import constant
from kernels.normalisation import rms_norm
from kernels.probing import disagreement

LARGEST = 8192  # channels that one program holds, to take their norm
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@constant
def kernels_run_on(device: str) -> bool:
    """Whether Triton is there and its kernels, or its interpreter, run on such a device."""
    if importlib.util.find_spec("triton") is None:
        return False
    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device == "cpu":
        from triton import knobs

        return bool(knobs.runtime.interpret)
    return False


def can_fuse(x: Tensor, *others: Tensor | None) -> bool:
    """Whether `in_one` takes these tensors, of which some may be missing, and is right on them."""
    given = [x, *(other for other in others if other is not None)]
    if not all(t.dtype in DTYPES for t in given):
        return False
    return _proves_right(x.device, x.dtype, x.shape[-1], len(given) > 3)


@constant
def _proves_right(device: torch.device, dtype: torch.dtype, channels: int, residual: bool) -> bool:
    if device.type != "cuda" and asked_for("gated_norm", "auto") == "auto":
        return kernels_run_on(device.type)  # in the interpreter; else not worth a word
    sizes = (("channels", channels), ("residual", int(residual)))
    signature = Signature(device=device, dtype=dtype, sizes=sizes, batch=1, length=96)
    fast = (Candidate(name="triton", probe=_probe),)
    return choose("gated_norm", "auto", signature, fast=fast, plain="torch") == "triton"


def _probe(signature: Signature) -> str | None:
    if not kernels_run_on(signature.device.type):
        return "its kernel needs a GPU of compute capability 8.0 or later, and triton"
    from kernels.gated_norm.in_one import gate_norm

    sizes, generator = dict(signature.sizes), torch.Generator(signature.device).manual_seed(0)
    S, eps = sizes["channels"], 1e-5

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=signature.device)

    rows = (signature.batch, signature.length, S)
    inputs = {"y": normal(*rows).to(signature.dtype), "gate": normal(*rows).to(signature.dtype)}
    inputs["weight"] = normal(S)
    if sizes["residual"]:
        inputs |= {"value": normal(*rows).to(signature.dtype), "residual": normal(S)}

    def run(y: Tensor, gate: Tensor, weight: Tensor, **more: Any) -> list[Tensor]:
        value, residual = more.get("value"), more.get("residual")
        return [gate_norm(y, value, residual, gate, weight, eps)]

    def reference(y: Tensor, gate: Tensor, weight: Tensor, **more: Tensor) -> list[Tensor]:
        if more:
            y = y + more["residual"] * more["value"]
        return [rms_norm(y * torch.nn.functional.silu(gate), weight, eps)]

    shared = frozenset({"weight", "residual"})
    return disagreement(run, reference, inputs, signature, shared=shared)
