"""Compiled training: what stands around the kernels of a layer is fused by torch.compile."""

import torch
import torch._dynamo
import torch._functorch.config

from arch_search.model import LanguageModel, train_layer
from blocks.mixture import MixtureOfExperts
from kernels.compiling import tell_compiler

KINDS = 64  # layers that differ in kind or width, each compiled once; the compiler's default is 8


def compile_layers(model: LanguageModel, *, backend: str = "inductor") -> None:
    """Let training run compiled layers; evaluation, whose lengths vary, stays as it is.

    Layers of one kind and width share a compiled function. The kernels must have run before, so
    that their backends are known.
    """
    torch._dynamo.config.recompile_limit = KINDS
    torch._dynamo.config.accumulated_recompile_limit = 4 * KINDS
    # Norms and activations are computed again in the backward pass: a Gated DeltaNet layer keeps
    # 15 instead of 26 times its input for it, and that is what bounds the batch.
    torch._functorch.config.ban_recompute_materialized_backward = False
    torch._functorch.config.ban_recompute_used_far_apart = False
    tell_compiler()
    for layer in model.each_layer():
        for name in layer.mixer.uncompiled():
            setattr(layer.mixer, name, torch.compiler.disable(getattr(layer.mixer, name)))
        if isinstance(layer.mlp, MixtureOfExperts):  # how many tokens an expert gets varies
            setattr(layer.mlp, "forward", torch.compiler.disable(layer.mlp.forward))  # noqa: B010
    model.train_layer = torch.compile(train_layer, dynamic=False, backend=backend)
