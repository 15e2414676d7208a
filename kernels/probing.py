"""How a fast backend is compared with our reference before it is used."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kernels.backends import Signature

LENGTH = 192  # tokens that are compared: three chunks of the kernels that we use, or more
TOLERANCES = {torch.float64: 1e-9, torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}
"""Largest relative error, ||x - truth|| / ||truth||; in float32 tensor cores may round to TF32."""


def disagreement(
    run: Callable[..., Sequence[Tensor]],
    reference: Callable[..., Sequence[Tensor]],
    inputs: Mapping[str, Tensor],
    signature: Signature,
    *,
    shared: frozenset[str] = frozenset(),
    looser: float = 1.0,
) -> str | None:
    """Compare outputs and gradients; None if they agree, else which does not and by how much.

    `run` sees the whole inputs, so that it is tuned at the run's own shapes. The reference sees the
    first sequence's first `LENGTH` tokens, in float32: all is causal, and gradients flow in from
    there alone.

    Args:
        inputs: by name, as both take them: (B, T, ...), or any if in `shared`. Of the outputs, the
            first is (B, T, ...); others are not compared.
        looser: what TOLERANCES are multiplied by, for a function that amplifies rounding.
    Raises:
        what `run` raises.
    """
    length = min(LENGTH, signature.length)

    def cut(name: str, x: Tensor) -> Tensor:
        return x if name in shared else x[:1, :length]

    # A probe may run inside a checkpointed part of a model, whose hooks are not for its tensors.
    unhooked = torch.autograd.graph.saved_tensors_hooks(_itself, _itself)
    plain = torch.autocast(signature.device.type, enabled=False)
    with torch.enable_grad(), plain, unhooked:
        whole = {k: x.detach().clone().requires_grad_() for k, x in inputs.items()}
        output = run(**whole)[0]
        weight = torch.zeros_like(output)
        generator = torch.Generator(output.device).manual_seed(0)
        shape = (1, length, *output.shape[2:])
        weight[:1, :length] = torch.randn(
            shape, generator=generator, device=output.device, dtype=torch.float32
        ).to(output.dtype)
        found = torch.autograd.grad(output, list(whole.values()), weight)
        wide = torch.float64 if output.dtype == torch.float64 else torch.float32
        small = {k: cut(k, x.detach()).to(wide).requires_grad_() for k, x in inputs.items()}
        truth = reference(**small)[0]
        expected = torch.autograd.grad(truth, list(small.values()), weight[:1, :length].to(wide))
    pairs = {"output": (output[:1, :length], truth)}
    for name, mine, other in zip(inputs, found, expected, strict=True):
        pairs[f"gradient of {name}"] = (cut(name, mine), other)
    return _worst(pairs, looser * TOLERANCES[signature.dtype])


def _itself(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
def _worst(pairs: Mapping[str, tuple[Tensor, Tensor]], tolerance: float) -> str | None:
    errors = {
        name: ((x.to(y.dtype) - y).norm() / y.norm().clamp(min=1e-30)).item()
        for name, (x, y) in pairs.items()
    }
    name = max(errors, key=lambda k: errors[k] if errors[k] == errors[k] else torch.inf)
    if errors[name] <= tolerance:
        return None
    return f"its {name} is off by {errors[name]:.2g} of its norm (at most {tolerance:g})"
