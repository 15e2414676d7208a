"""Exact counts of a whole language model from its blocks' own, on the meta device: no memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blocks.base import Cost
from blocks.mixture import Experts, MixtureOfExperts
from blocks.options import read_options
from blocks.registry import build, resolve_options
from blocks.swiglu import SwiGLU


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModelCounts:
    """Parameters of a pre-norm language model, in all and used by one token."""

    parameters: int
    active_parameters: int
    mixers: tuple[Cost, ...]


def build_channel_mixer(
    mapping: Mapping[str, Any], *, width: int, depth: int
) -> SwiGLU | MixtureOfExperts:
    """From {width: F}, with {experts: {count, active, width}} for a mixture beside it.

    Raises:
        ValueError: an unknown key, or numbers that do not fit.
    """
    given = dict(mapping)
    hidden, experts = given.pop("width", 0), given.pop("experts", None)
    if given:
        raise ValueError(f"unknown keys {sorted(given)} of a channel mixer; it has width, experts")
    if experts is None:
        return SwiGLU(width, hidden, depth=depth)
    options = read_options(Experts, experts, owner="experts")
    return MixtureOfExperts(width, hidden, options, depth=depth)


def count_language_model(
    layers: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    channel: Mapping[str, Any],
    width: int,
    vocabulary: int,
    tie_embeddings: bool,
    length: int = 4096,
) -> LanguageModelCounts:
    """Count embedding, layers (each mixer with its options, one channel mixer), norms and head.

    Raises:
        ValueError: a block, an option or the channel mixer is not right.
    """
    with torch.device("meta"):
        mixers = tuple(
            build(
                kind, resolve_options(kind, options, width=width), width=width, depth=len(layers)
            ).cost(length)
            for kind, options in layers
        )
        mlp = build_channel_mixer(channel, width=width, depth=len(layers)).cost()
    tables = vocabulary * width * (1 if tie_embeddings else 2)
    norms = (2 * len(layers) + 1) * width
    rest = tables + norms + sum(mixer.parameters for mixer in mixers)
    return LanguageModelCounts(
        parameters=rest + len(layers) * mlp.parameters,
        active_parameters=rest + len(layers) * mlp.active_parameters,
        mixers=mixers,
    )
