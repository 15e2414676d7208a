"""What is checked where runs will run, before the first of them starts: starts and backends."""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from arch_search.devices import device_for
from arch_search.errors import UsageError
from arch_search.model import LanguageModel, build_model
from arch_search.plan_spec import ArmSpec
from arch_search.run_settings import ResourceSpec
from arch_search.start_check import check_start
from arch_search.warm_up import warm_up
from blocks.base import INITIAL_STD
from blocks.registry import block_class
from kernels.backends import ask_for, backends_used, forget_backends
from kernels.errors import BackendUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """How far a preflight came."""

    used: dict[str, list[str]]  # the backends that each kernel ran on
    seen: frozenset[str]  # which layers and shapes were tried
    worked: int  # arms
    broken: str | None = None  # at which arm it ended, and why; what came after is not tried yet


def preflight(
    root: str,
    arms: Sequence[ArmSpec],
    resources: ResourceSpec,
    seen: frozenset[str] = frozenset(),
) -> Checked:
    """Build each arm's model, check its start, and run its kernels once; drops all of it.

    Arms with layers, widths and lengths that were seen before cost nothing. What is compiled and
    tuned stays in the node's cache, so that the runs find it. It ends at the first arm that fails
    in any other way than those below: a process whose kernel went wrong can use the GPU no more.

    Args:
        seen: of a preflight that ended early, to go on behind it in another process.
    Raises:
        ValueError: a parameter's start is not as declared, or a backend asked for does not work.
    """
    device = device_for(resources)
    tried, worked, broken = set(seen), 0, None
    with _asking(resources):
        for arm in arms:
            signatures = set(_signatures(arm))
            if signatures <= tried:
                continue
            tried |= signatures
            try:
                with _naming(arm):
                    _check_device(arm, device)
                    model = build_model(arm.model, seed=0, device=device)
                    check_start(model)
                    _run(model, arm, device, resources, Path(root) / "tuned")
            except ValueError:
                raise
            except Exception as error:
                log.exception("arm %s", arm.name)
                said = str(error).strip().splitlines() or [""]
                broken = f"arm {arm.name} failed: {type(error).__name__}: {said[0]}"
                break
            worked += 1
    return Checked(used=backends_used(), seen=frozenset(tried), worked=worked, broken=broken)


def check_backends(root: str, arms: Sequence[ArmSpec], resources: ResourceSpec) -> None:
    """Whether the blocks can run here at all, and each kernel on the backend asked for by name.

    The part of `preflight` that a measurement of speed wants first: each kind of layer once, from
    no declared start, not compiled; without a backend by name nothing is run. Rows are seen whole.
    What else may fail, memory included, is left to the measurement, which says so cell by cell.

    Raises:
        ValueError: a block or a backend asked for does not work.
    """
    device = device_for(resources)
    resources = replace(resources, compile=False)
    seen: set[str] = set()
    with _asking(resources):
        for arm in arms:
            with _naming(arm):
                _check_device(arm, device)
            layers = dict(zip(_signatures(arm), arm.model.layers, strict=True))
            new = tuple(layer for signature, layer in layers.items() if signature not in seen)
            seen |= layers.keys()
            if resources.backends and new:
                data = replace(arm.data, reset=False)
                few = replace(arm, data=data, model=replace(arm.model, layers=new))
                with _naming(arm):
                    _try_backends(few, device, resources, Path(root) / "tuned")
    torch.cuda.empty_cache()  # nothing off a GPU


@contextlib.contextmanager
def _asking(resources: ResourceSpec) -> Iterator[None]:
    forget_backends()
    ask_for(resources.backends)
    try:
        yield
    finally:
        ask_for({})  # the process may serve others


@contextlib.contextmanager
def _naming(arm: ArmSpec) -> Iterator[None]:
    try:
        yield
    except (BackendUnavailable, ValueError) as error:
        raise ValueError(f"arm {arm.name}: {error}") from None


def _check_device(arm: ArmSpec, device: torch.device) -> None:
    for kind in {layer.kind: None for layer in arm.model.layers}:
        block_class(kind).check_device(device)


def _try_backends(arm: ArmSpec, device: torch.device, resources: ResourceSpec, kept: Path) -> None:
    try:
        with torch.device(device):
            model = LanguageModel(arm.model)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=INITIAL_STD)
        _run(model, arm, device, resources, kept)
    except (BackendUnavailable, UsageError):
        raise
    except Exception as error:  # whatever a kernel raises: the backend is there, and others go on
        log.info("%s, tried beforehand: %s: %s", arm.name, type(error).__name__, error)


def _signatures(arm: ArmSpec) -> list[str]:
    """What tells one layer's kernels from another's."""
    shape = (arm.data.batch, arm.data.sequence_length, arm.data.reset, arm.train.precision)
    shape = (*shape, arm.model.width, arm.model.vocabulary)
    return [json.dumps([asdict(layer), shape], sort_keys=True) for layer in arm.model.layers]


def _run(
    model: LanguageModel, arm: ArmSpec, device: torch.device, resources: ResourceSpec, kept: Path
) -> None:
    batch = resources.micro_batch or arm.data.batch
    shape = (batch, arm.data.sequence_length + 1)
    tokens = torch.randint(arm.model.vocabulary, shape, device=device)
    resets = torch.zeros(shape[0], shape[1] - 1, dtype=torch.bool, device=device)
    warm_up(
        model, tokens, 0, arm.train.precision, resets if arm.data.reset else None,
        resources=resources, kept=kept, halved=lambda _: None,
    )  # fmt: skip
