"""Inputs to check a backend of the scan on, and its errors against the float64 loop."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.m2rnn.reference import Clip, Nonlinearity, Write, m2rnn_loop
from kernels.m2rnn.scan import Backend, expand_heads, m2rnn_scan

Kind = Literal["normal", "initial", "slow"]
NAMES = ("query", "key", "value", "forget", "weight", "state", "gate_weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes and head counts; a head count of 0 means N."""

    B: int
    T: int
    N: int
    K: int
    V: int
    Nq: int = 1
    Nk: int = 1
    Nv: int = 0
    Nf: int = 0
    Nw: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Tensors by name (None where absent), the gradients that come in, and the modes."""

    tensors: dict[str, Tensor | None]
    grad_output: Tensor
    grad_last: Tensor
    reset: Tensor | None
    nonlinearity: Nonlinearity
    write: Write
    clip: Clip


def make_case(
    shape: Shape,
    *,
    kind: Kind = "normal",
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    weight: Literal["dense", "diagonal", "identity"] = "dense",
    nonlinearity: Nonlinearity = "tanh",
    write: Write = "outer",
    clip: Clip = "none",
    state: bool = True,
    state_gate: bool = False,
    reset: bool = False,
    seed: int = 0,
) -> Case:
    """Random inputs.

    "normal": q, k, v normal, f uniform, W = I + 0.4 n / sqrt(V) (0.1 n at V 16; around I / 2 where
    phi does not bound the state). "slow": the same with f in [0.998, 1]. "initial": the block at
    its own initialisation, W = I, small q, k, v, gates from the published ranges.
    """
    B, T, N, K, V = shape.B, shape.T, shape.N, shape.K, shape.V
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=generator)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, device=device, generator=generator)

    small = 0.01 if kind == "initial" else 1.0 if write == "outer" else 0.3
    heads = {x: getattr(shape, x) or N for x in ("Nq", "Nk", "Nv", "Nf", "Nw")}
    forget = uniform(B, T, heads["Nf"])
    if kind == "slow":
        forget = 0.998 + 0.002 * forget
    if kind == "initial":
        forget = _initial_forget(uniform(heads["Nf"]), uniform(heads["Nf"]), 0.64 * normal(B, T, 1))
    if state_gate:
        forget = normal(B, T, heads["Nf"])
    level = 1.0 if nonlinearity not in ("identity", "relu") else 0.5
    noise = 0.0 if kind == "initial" else 0.4 / math.sqrt(V)
    noise = noise if level == 1.0 else 0.25 * noise
    w = level * torch.eye(V, device=device) + noise * normal(heads["Nw"], V, V)
    if weight == "diagonal":
        w = torch.diagonal(w, dim1=1, dim2=2).clone()
    tensors: dict[str, Tensor | None] = {
        "query": (small * normal(B, T, heads["Nq"], K)).to(dtype),
        "key": (small * normal(B, T, heads["Nk"], K)).to(dtype),
        "value": (small * normal(B, T, heads["Nv"], V)).to(dtype),
        "forget": forget,
        "weight": None if weight == "identity" else w.to(dtype),
        "state": 0.3 * normal(B, N, K, V) if state and kind != "initial" else None,
        "gate_weight": 0.3 * normal(N, V) if state_gate else None,
    }
    return Case(
        tensors=tensors,
        grad_output=(0.1 * normal(B, T, N, V)).to(dtype),
        grad_last=0.1 * normal(B, N, K, V),
        reset=uniform(B, T) < 0.05 if reset else None,
        nonlinearity=nonlinearity,
        write=write,
        clip=clip,
    )


def _initial_forget(a: Tensor, b: Tensor, logits: Tensor) -> Tensor:
    """exp(-A softplus(x + bias)), A ~ U(0, 16), dt log-uniform in [1e-3, 1e-1]."""
    step = torch.exp(math.log(1e-3) + b * math.log(100))
    bias = step + torch.log(-torch.expm1(-step))
    return torch.exp(-16 * a * torch.nn.functional.softplus(logits + bias))


def run(case: Case, backend: Backend) -> dict[str, Tensor]:
    """Output, last state and every gradient, by name."""
    leaves = {
        name: x.detach().clone().requires_grad_()
        for name, x in case.tensors.items()
        if x is not None
    }
    inputs: dict[str, Any] = {name: leaves.get(name) for name in NAMES}
    modes: dict[str, Any] = {
        "nonlinearity": case.nonlinearity,
        "write": case.write,
        "clip": case.clip,
    }
    if backend == "loop":
        output, last = _loop(inputs, case, modes)
    else:
        gate_weight = inputs.pop("gate_weight")
        output, last = m2rnn_scan(
            **inputs, gate_weight=gate_weight, reset=case.reset, backend=backend, **modes
        )
    grads = [case.grad_output.to(output.dtype), case.grad_last.to(last.dtype)]
    found = torch.autograd.grad([output, last], list(leaves.values()), grads)
    named = {f"d_{name}": x for name, x in zip(leaves, found, strict=True)}
    return {"output": output.detach(), "last_state": last.detach(), **named}


def _loop(inputs: dict[str, Any], case: Case, modes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    N = case.grad_last.shape[1]
    q, k, v, f = (expand_heads(inputs[x], N, 2) for x in NAMES[:4])
    w, state = inputs["weight"], inputs["state"]
    w = None if w is None else expand_heads(w, N, 0)
    state = torch.zeros_like(case.grad_last) if state is None else state
    return m2rnn_loop(
        q, k, v, f, w, state, gate_weight=inputs["gate_weight"], reset=case.reset, **modes
    )


def widened(case: Case) -> Case:
    """The same numbers in float64."""
    return replace(
        case,
        tensors={n: None if x is None else x.double() for n, x in case.tensors.items()},
        grad_output=case.grad_output.double(),
        grad_last=case.grad_last.double(),
    )


def errors(case: Case, backend: Backend = "triton") -> dict[str, float]:
    """||x - truth|| / ||truth|| of the output, the last state and every gradient.

    The truth is the loop in float64. What a backend leaves unwritten shows as NaN.
    """
    return errors_of(run(case, backend), case)


def errors_of(found: dict[str, Tensor], case: Case) -> dict[str, float]:
    """`errors` of what was found some other way."""
    truth = run(widened(case), "loop")
    return {
        name: ((found[name].double() - x).norm() / x.norm().clamp(min=1e-30)).item()
        for name, x in truth.items()
    }
