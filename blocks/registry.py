"""The sequence mixers by name: one line a block. Others come by import path or entry point."""

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from blocks.base import SequenceMixer
from blocks.fla_layer import fla_block
from blocks.options import OF_FLA, did_you_mean, read_options

BLOCKS = {
    "attention": "blocks.attention:Attention",
    "gated_deltanet": "blocks.gated_deltanet:GatedDeltaNet",
    "gated_deltaproduct": "blocks.gated_deltaproduct:GatedDeltaProduct",
    "gru": "blocks.gru:GRU",
    "lstm": "blocks.lstm:LSTM",
    "m2rnn": "blocks.m2rnn:M2RNN",
    "mamba2": "blocks.mamba2:Mamba2",
    "rnn": "blocks.rnn:RNN",
}

SHORT_NAMES = {"attn": "attention", "gdn": "gated_deltanet", "gdp": "gated_deltaproduct"}

ENTRY_POINTS = "arch_search.blocks"  # name = "my_pkg.my_file:MyBlock" in another distribution


def registered() -> dict[str, str]:
    """Import paths by name: ours, then those that installed distributions announce."""
    return _announced() | BLOCKS


@cache
def _announced() -> dict[str, str]:
    """Looked up once: it reads the metadata of every installed distribution."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def canonical_kind(name: str) -> str:
    """The one name of a block: a short name spelled out, an import path as it is.

    Raises:
        ValueError: nothing is registered under `name`; names what is nearest.
    """
    kind = SHORT_NAMES.get(name, name)
    if kind in BLOCKS or ":" in kind:
        return kind
    known = registered()
    if kind in known:
        return kind
    near = did_you_mean(name, [*known, *SHORT_NAMES])
    raise ValueError(f"unknown block {name!r}; registered: {', '.join(sorted(known))}.{near}")


def block_class(kind: str) -> type[SequenceMixer]:
    """The class of a registered block, a layer of fla ("fla:RWKV7Attention"), or an import path.

    Raises:
        ValueError: there is no such block, or it cannot be imported, or it is no SequenceMixer.
    """
    kind = canonical_kind(kind)
    if kind.startswith(OF_FLA):
        return fla_block(kind.removeprefix(OF_FLA))
    path = BLOCKS.get(kind) or registered().get(kind, kind)
    module_name, _, class_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"block {kind!r} cannot be imported: {error}; your own folder must be on PYTHONPATH"
        ) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, SequenceMixer)):
        raise ValueError(f"block {kind!r}: {path} is {found!r}; expected a SequenceMixer subclass")
    return found


def resolve_options(kind: str, mapping: Mapping[str, Any], *, width: int) -> Any:
    """The block's Options with every default and every derived number spelled out.

    Raises:
        ValueError: an unknown key or a wrong value (says what is nearest or allowed), or options
            that do not fit each other or the width.
    """
    cls = block_class(kind)
    owner = canonical_kind(kind)
    options = read_options(cls.Options, mapping, owner=owner)
    try:
        return cls.complete(options, width=width)
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from error


def build(kind: str, options: Any, *, width: int, depth: int) -> SequenceMixer:
    """A block for model width `width` in a model of `depth` layers, its parameters unfilled."""
    return block_class(kind)(options, width=width, depth=depth)
