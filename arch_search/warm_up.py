"""All that only the first step of a kind pays: choosing backends, compiling, tuning. Untimed."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from arch_search.devices import autocast
from arch_search.kernel_cache import alone_on_this_node, chosen, keep_tuned, pin_tuned, tuned_files
from arch_search.kernel_cache import use_kernel_cache as cache_of_this_node
from arch_search.micro_batches import accumulate_within_memory, inputs_and_targets
from arch_search.model import LanguageModel
from arch_search.parallel_tuning import compiled_together
from arch_search.run_settings import ResourceSpec
from arch_search.spec import content_hash


def compiles(resources: ResourceSpec, device: torch.device) -> bool:
    """Whether training's layers are compiled: as asked, or on a GPU."""
    return device.type == "cuda" if resources.compile is None else resources.compile


@dataclass(kw_only=True, slots=True)
class Kernels:
    """The kernels of one run on this node: its cache, and what stood in it when training began."""

    cache: Path | None  # None: off the GPU nothing is tuned
    kept: Path
    before: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0  # what the warm-up took

    def tuned_since(self) -> list[str]:
        """Kernels tuned after the warm-up: such steps were slow, and are in the clock."""
        if self.cache is None:
            return []
        now = tuned_files(self.cache)
        late = {Path(p).name for p, time in now.items() if self.before.get(p) != time}
        return sorted(name.split(".")[0] for name in late)

    def record(self) -> dict[str, object]:
        """What a result says of them: the hash by which the choices can be pinned, and them."""
        if self.cache is None:
            return {}
        return {"tuned": keep_tuned(self.cache, self.kept), "tuned_kernels": chosen(self.cache)}


def warm_up(
    model: LanguageModel,
    tokens: Tensor,
    micro_batch: int,
    precision: str,
    resets: Tensor | None,
    *,
    resources: ResourceSpec,
    kept: Path,
    halved: Callable[[int], None],
) -> Kernels:
    """Run a whole step's forward and backward passes, once, and drop the gradients.

    One process of a node does so at a time, unless one did the same before it. Weights and buffers
    are as before.

    Args:
        tokens, micro_batch, precision, resets, halved: as of `accumulate_within_memory`.
        kept: the folder of tuned configurations under the storage root.
    Raises:
        BackendUnavailable: a backend that was asked for by name did not prove right here.
        UsageError: `resources.tuned` names nothing that is kept.
    """
    compiled, device = compiles(resources, tokens.device), tokens.device
    started = time.monotonic()
    if device.type != "cuda":
        if compiled or resources.backends:
            _pass(model, tokens, micro_batch, precision, resets, compiled, halved)
        return Kernels(cache=None, kept=kept, seconds=time.monotonic() - started)
    cache = cache_of_this_node()
    if resources.tuned:
        pin_tuned(cache, kept, resources.tuned)
    alone = alone_on_this_node(cache, _what(model, tokens, micro_batch, precision, resources))
    with alone, compiled_together(len(os.sched_getaffinity(0))):
        _pass(model, tokens, micro_batch, precision, resets, compiled, halved)
        torch.cuda.synchronize(device)
    seconds = time.monotonic() - started
    return Kernels(cache=cache, kept=kept, before=tuned_files(cache), seconds=seconds)


def _what(
    model: LanguageModel, tokens: Tensor, micro_batch: int, precision: str, resources: ResourceSpec
) -> str:
    """A name of what is compiled and tuned: equal ones find all of it in the node's cache."""
    layers = {content_hash(asdict(layer)) for layer in model.spec.layers}
    sizes = [model.spec.width, model.spec.vocabulary, micro_batch or len(tokens), tokens.shape[-1]]
    chosen_by = [resources.backends, resources.compile, resources.tuned, torch.__version__]
    return content_hash([sorted(layers), sizes, precision, chosen_by])


def _pass(
    model: LanguageModel,
    tokens: Tensor,
    micro_batch: int,
    precision: str,
    resets: Tensor | None,
    compiled: bool,
    halved: Callable[[int], None],
) -> None:
    piece = slice(0, micro_batch or len(tokens))
    settle_backends(model, tokens[piece], precision, None if resets is None else resets[piece])
    if compiled:
        from arch_search.compiling import compile_layers  # imports the compiler: seconds

        compile_layers(model)
    before = [buffer.clone() for buffer in model.buffers()]
    accumulate_within_memory(model, tokens, micro_batch, precision, resets, halved=halved)
    model.zero_grad(set_to_none=True)
    _put_back(model.buffers(), before)


@torch.no_grad()
def settle_backends(
    model: LanguageModel, tokens: Tensor, precision: str, resets: Tensor | None = None
) -> None:
    """Run each kernel once at the shapes of a micro-batch, so that every backend is chosen.

    Raises:
        BackendUnavailable: one that was asked for by name did not prove right here.
    """
    inputs, targets = inputs_and_targets(tokens)
    with autocast(tokens.device, precision):
        model.loss(inputs, targets, reset=resets)


@torch.no_grad()
def _put_back(buffers: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)
