"""How much each mixer adds to the residual stream at its start, measured on normal inputs."""

import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch

from arch_search.confounds.derived import ArmFacts, compared_kinds
from arch_search.plan_spec import FindingSpec
from arch_search.spec import LayerSpec, ModelSpec
from arch_search.wording import listed
from blocks.initialisation import named_generator
from blocks.registry import build, resolve_options
from kernels.errors import BackendUnavailable

TOKENS = 64  # of the one sequence that it is measured on: seconds even at 7 B
RATIO = 1.5  # between mixers, from which it is worth a line


def unequal_branches(facts: Sequence[ArmFacts]) -> Iterator[FindingSpec]:
    """The root mean square of each compared mixer's output for inputs of unit scale."""
    scales: dict[str, float] = {}
    for kind in compared_kinds(facts):
        model, layer = next(
            (f.arm.model, layer) for f in facts for layer in f.arm.model.layers
            if layer.kind == kind
        )  # fmt: skip
        if not math.isnan(scale := branch_scale(layer, model)):
            scales[kind] = scale
    if len(scales) > 1 and max(scales.values()) > RATIO * min(scales.values()):
        ordered = sorted(scales, key=lambda kind: -scales[kind])
        shown = listed([f"{scales[kind]:.2g} ({kind})" for kind in ordered], shown=8)
        text = (
            f"what a mixer adds to a residual stream of unit scale at step 0: {shown}: a ratio of "
            f"{scales[ordered[0]] / scales[ordered[-1]]:,.1f}"
        )
        yield FindingSpec(level="residue", subject="branch scale", text=text)


def branch_scale(layer: LayerSpec, model: ModelSpec) -> float:
    """The root mean square of what the layer's mixer adds, at its start, for unit inputs.

    NaN where it cannot run on a CPU: planning asks for no GPU.
    """
    options = json.dumps(layer.options, sort_keys=True)
    try:
        return _scale(layer.kind, options, model.width, len(model.layers))
    except BackendUnavailable:
        return math.nan


@lru_cache(maxsize=256)
def _scale(kind: str, options: str, width: int, depth: int) -> float:
    resolved = resolve_options(kind, json.loads(options), width=width)
    mixer = build(kind, resolved, width=width, depth=depth)
    with torch.no_grad():
        for name, declared in mixer.declared_parameters().items():
            parameter = mixer.get_parameter(name)
            generator = named_generator(0, name, parameter.shape)
            parameter.copy_(declared.start.sample(parameter.shape, generator))
        shape = torch.Size([1, TOKENS, width])
        x = torch.randn(shape, generator=named_generator(0, "input", shape))
        y, _ = mixer(x)
    return math.sqrt(float(y.square().mean()))
