"""A prepared corpus and small models with random weights: what evaluations are tried on."""

from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch

from arch_search.data import open_split, prepare
from arch_search.model import LanguageModel, build_model
from arch_search.spec import LayerSpec, ModelSpec
from arch_search.storage import Root
from arch_search.tasks.base import EvaluationContext
from blocks.registry import resolve_options

WIDTH = 32


@pytest.fixture(scope="session")
def split(prepared: Root):
    return open_split(prepare("sotu", "bytes", prepared.path), "val")


@pytest.fixture
def context(split) -> EvaluationContext:
    return EvaluationContext(
        split=split, sequence_length=32, device=torch.device("cpu"), precision="float32"
    )


def spec_of(*kinds: str, tie_embeddings: bool = True, **options) -> ModelSpec:
    """A model of these blocks, 32 wide, over bytes."""
    layers = tuple(
        LayerSpec(
            kind=kind, options=asdict(resolve_options(kind, options, width=WIDTH)), mlp_width=32
        )
        for kind in kinds
    )
    return ModelSpec(layers=layers, width=WIDTH, vocabulary=257, tie_embeddings=tie_embeddings)


@pytest.fixture
def model_of() -> Callable[..., LanguageModel]:
    """A model of these blocks, its weights so large that it is sure of what it says, and varied."""

    def make(*kinds: str, **options) -> LanguageModel:
        model = build_model(spec_of(*kinds, tie_embeddings=False, **options), seed=1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.mul_(30 if name == "head.weight" else 8)
        return model

    return make


class UniformBytes(LanguageModel):
    """Every byte alike, and never an end of document."""

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        flat = features.new_zeros(*features.shape[:-1], self.spec.vocabulary)
        flat[..., 256] = -torch.inf
        return flat


@pytest.fixture
def uniform() -> UniformBytes:
    return UniformBytes(spec_of("gru"))
