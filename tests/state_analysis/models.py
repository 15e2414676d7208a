"""Small models, off their start so that every path carries weight."""

import torch

from arch_search.model import LanguageModel
from arch_search.spec import LayerSpec, ModelSpec
from blocks.initialisation import named_generator

VOCABULARY = 29


def small_model(*kinds: str, seed: int = 0, width: int = 12, **options) -> LanguageModel:
    """Float64, one layer a kind; `options` are each block's."""
    layers = tuple(LayerSpec(kind=kind, options=options, mlp_width=16) for kind in kinds)
    spec = ModelSpec(layers=layers, width=width, vocabulary=VOCABULARY, tie_embeddings=True)
    model = LanguageModel(spec)
    declared = model.declared_parameters()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = named_generator(seed, name, parameter.shape)
            start = declared[name].start.sample(parameter.shape, generator)
            parameter.copy_(start + 0.2 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


def tokens(length: int, *, batch: int = 2, seed: int = 1) -> torch.Tensor:
    """(batch, length) int64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator)
