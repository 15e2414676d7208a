"""Whether the Triton scan is right where it would run: against torch's, at the heads in use."""

from typing import Any

import torch
from torch import Tensor

from kernels.backends import Signature
from kernels.probing import disagreement

LENGTH = 96  # tokens: three distances between kept states; our kernels tune nothing by length
KINKED = ("relu", "hard_tanh", "norm_clip")
LOOSER = 3.0  # there: rounding moves single elements or rows over the kink, and flips a derivative

_proved: dict[tuple, str | None] = {}


def why_wrong(inputs: tuple[Any, ...], modes: dict[str, Any]) -> str | None:
    """None if outputs and gradients agree at these heads, dtypes and modes; tried once a process,
    or twice: batches that fill the GPU run with wider tiles.

    Args:
        inputs: query, key, value, forget, weight, state as `m2rnn_scan` has them.   modes: its own.
    """
    from kernels.m2rnn.fast_scan import fills_the_gpu

    shapes = tuple(None if x is None else (x.dtype, tuple(x.shape[2:])) for x in inputs[:4])
    weight = inputs[4]
    own = tuple(v for k, v in sorted(modes.items()) if k not in ("reset", "gate_weight"))
    gate = modes["gate_weight"] is not None
    wide = fills_the_gpu(len(inputs[0]), inputs[5].shape[1], inputs[0].shape[3], inputs[2].shape[3])
    key = (wide, shapes, None if weight is None else (weight.dtype, tuple(weight.shape)), own, gate)
    if key not in _proved:
        try:
            with torch.inference_mode(mode=False):  # an evaluation may ask first, where none learn
                _proved[key] = compare(inputs, modes)
        except Exception as error:  # whatever a launch raises, `auto` goes on without the kernel
            _proved[key] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return _proved[key]


def compare(inputs: tuple[Any, ...], modes: dict[str, Any]) -> str | None:
    """Run both on random inputs of these shapes; what `disagreement` says."""
    from kernels.m2rnn.scan import run_expanded
    from kernels.m2rnn.torch_scan import m2rnn_torch
    from kernels.m2rnn.triton_scan import m2rnn_triton

    query, key, value, forget, weight, state = inputs
    device, generator = query.device, torch.Generator(query.device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def like(x: Tensor) -> Tensor:
        return normal(B, LENGTH, *x.shape[2:])

    B, N, K, V = len(query), state.shape[1], query.shape[3], value.shape[3]
    gates = like(forget) if modes["gate_weight"] is not None else torch.sigmoid(like(forget))
    made = {
        "query": (K**-0.5 * like(query)).to(query.dtype),
        "key": (K**-0.5 * like(key)).to(key.dtype),
        "value": like(value).to(value.dtype),
        "forget": gates.to(forget.dtype),
    }
    if weight is not None:
        half = 0.5 * torch.eye(V, device=device) if weight.ndim == 3 else 0.5
        made["weight"] = (half + 0.1 * V**-0.5 * normal(*weight.shape)).to(weight.dtype)
    if modes["gate_weight"] is not None:
        made["gate_weight"] = 0.3 * normal(N, V)
    rest = {k: v for k, v in modes.items() if k not in ("gate_weight", "reset")}

    def run(scan: Any, x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        tensors = [x.get(name) for name in ("query", "key", "value", "forget", "weight")]
        start = torch.zeros(len(x["query"]), N, K, V, device=device)
        every = {**rest, "gate_weight": x.get("gate_weight"), "reset": None}
        return scan((*tensors, start), every)

    return disagreement(
        lambda **x: run(lambda tensors, every: m2rnn_triton(*tensors, **every), x),
        lambda **x: run(lambda tensors, every: run_expanded(m2rnn_torch, tensors, every, N), x),
        made,
        Signature(device=device, dtype=value.dtype, sizes=(), batch=B, length=LENGTH),
        shared=frozenset({"weight", "gate_weight"}),
        looser=LOOSER if modes["nonlinearity"] in KINKED else 1.0,
    )
