"""Any layer of flash-linear-attention as a block, by its name: fla:RWKV7Attention.

Its options are the layer's own arguments. Its kernels need a GPU; planning does not.
"""

import functools
import importlib
import inspect
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, make_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blocks.base import Cost, SequenceMixer, State
from blocks.initialisation import Constant, Normal, Parameter, Start
from blocks.options import OF_FLA, did_you_mean, option
from kernels.errors import BackendUnavailable

GIVEN = (
    "self",
    "hidden_size",
    "layer_idx",
    "num_hidden_layers",
    "kwargs",
    "args",
    "config",
)  # by the model, not a file
OWN_START = ("_initialize_weights", "reset_parameters")
Plain = bool | int | float | str | None


@functools.cache
def layer_class(name: str) -> type[nn.Module]:
    """The layer of fla that `name` says. Raises ValueError: fla is not there, or has none such."""
    try:
        layers = importlib.import_module("fla.layers")
    except ImportError as error:
        raise ValueError(
            f"block '{OF_FLA}{name}' is a layer of flash-linear-attention, which cannot be "
            f"imported here ({error}); install the extra: pip install '.[fla]'"
        ) from None
    if name not in layers.__all__:
        known = sorted(layers.__all__)
        raise ValueError(
            f"flash-linear-attention has no layer {name!r}; it has: {', '.join(known)}."
            f"{did_you_mean(name, known)}"
        )
    return getattr(layers, name)


@functools.cache
def fla_block(name: str) -> type[SequenceMixer]:
    """The block of a layer of fla. Raises ValueError as `layer_class`."""
    options = make_dataclass(
        "Options", list(_fields(layer_class(name))), frozen=True, kw_only=True, slots=True
    )
    return type(
        name, (FlaLayer,),
        {"Options": options, "summary": f"{name} of flash-linear-attention",
         "layer_name": name, "__module__": __name__},
    )  # fmt: skip


def _fields(layer: type[nn.Module]) -> Iterator[tuple[str, Any, Any]]:
    """(name, type, default) of each argument that a file may give."""
    for name, argument in inspect.signature(layer.__init__).parameters.items():
        default = None if argument.default is inspect.Parameter.empty else argument.default
        if name in GIVEN or not isinstance(default, Plain):
            continue  # arguments that are no plain values keep the layer's own
        kind = Plain if default is None else int | float if _is_number(default) else type(default)
        yield name, kind, option(default, "an argument of fla's layer")


def _build(name: str, width: int, depth: int, options: dict[str, Plain]) -> nn.Module:
    """The layer as the first of `depth`, with every option that is not None.

    Raises:
        ValueError: it refuses its arguments, or wants a package that is not there.
    """
    layer = layer_class(name)
    asked = {"hidden_size": width, "layer_idx": 0, "num_hidden_layers": max(depth, 2)}
    takes = inspect.signature(layer.__init__).parameters
    given = {key: value for key, value in asked.items() if key in takes}
    given |= {key: value for key, value in options.items() if value is not None}
    try:
        return layer(**given)
    except (AssertionError, ImportError, TypeError, RuntimeError, ValueError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{OF_FLA}{name} at width {width}: {said}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class OfLayer(Start):
    """What the layer itself gives a parameter when it is built under a seed."""

    layer: str
    width: int
    depth: int
    options: tuple[tuple[str, Plain], ...]
    parameter: str

    def sample(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        with torch.random.fork_rng(devices=()), torch.device("cpu"):
            torch.manual_seed(generator.initial_seed())
            built = _build(self.layer, self.width, self.depth, dict(self.options))
        return built.get_parameter(self.parameter).detach().float().reshape(shape)

    def moments(self, shape: torch.Size) -> tuple[float, float]:
        """Of one draw: the layer declares none."""
        drawn = self.sample(shape, torch.Generator().manual_seed(0)).double()
        return drawn.mean().item(), drawn.std(correction=0).item()


class FlaLayer(SequenceMixer):
    """y = the layer's output; its state is what the layer caches, by fla's names.

    Linear maps start as ours do unless the layer fills itself; all else starts as the layer starts
    it. States are carried only where no gradient is asked for, as fla's layers train from none.
    """

    layer_name = ""

    def __init__(self, options: Any, *, width: int, depth: int) -> None:
        super().__init__(options, width=width, depth=depth)
        self.layer: Any = _build(self.layer_name, width, depth, asdict(self.options))

    @classmethod
    def check_device(cls, device: torch.device) -> None:
        if device.type != "cuda":  # Triton would say: 0 active drivers
            raise BackendUnavailable(
                f"block {OF_FLA}{cls.layer_name}: a layer of flash-linear-attention; its kernels "
                f"need a GPU, and this is {device.type}"
            )

    def uncompiled(self) -> tuple[str, ...]:
        return ("forward",)

    def forward(
        self, x: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_device(x.device)
        if reset is not None:
            if state:
                raise ValueError(f"{OF_FLA}{self.layer_name} cannot reset amid a carried state")
            return self._packed(x, reset), {}
        if torch.is_grad_enabled() and not state:
            return self.layer(hidden_states=x, use_cache=False)[0], {}
        cache = _cache_of(state)
        y, _, cache = self.layer(hidden_states=x, past_key_values=cache, use_cache=True)
        return y, dict(_flat(cache[0])) | {"seen": _seen(state, x)}

    def _packed(self, x: Tensor, reset: Tensor) -> Tensor:
        """Documents one behind the other in a single row, as fla takes sequences of any length."""
        starts = reset.clone()
        starts[:, 0] = True
        borders = starts.flatten().nonzero()[:, 0]
        ends = torch.cat([borders, borders.new_tensor([starts.numel()])])
        y = self.layer(hidden_states=x.reshape(1, -1, x.shape[-1]), cu_seqlens=ends)[0]
        return y.reshape(x.shape)

    def initial_state(
        self, batch: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> State:
        """Empty: the layer makes its own at the first token."""
        return {}

    def declared_parameters(self) -> dict[str, Parameter]:
        plain = tuple(sorted(asdict(self.options).items()))
        fills_itself = any(hasattr(type(self.layer), name) for name in OWN_START)
        declared = {}
        for name, parameter in self.layer.named_parameters():
            owner = self.layer.get_submodule(name.rpartition(".")[0])
            start: Start = OfLayer(self.layer_name, self.width, self.depth, plain, name)
            if isinstance(owner, nn.Linear) and not fills_itself:
                out = name in ("o_proj.weight", "out_proj.weight")
                std = self.initial_std / (math.sqrt(2 * self.depth) if out else 1)
                start = Normal(std) if parameter.ndim == 2 else Constant(0.0)
            decay = parameter.ndim >= 2 and not getattr(parameter, "_no_weight_decay", False)
            declared[f"layer.{name}"] = Parameter(start, decay=decay)
        return declared

    def cost(self, length: int) -> Cost:
        """Parameters are exact; state as the layer tells it (0: it does not); FLOPs of its linear
        maps alone."""
        linear = [m for m in self.layer.modules() if isinstance(m, nn.Linear)]
        return Cost(
            parameters=sum(parameter.numel() for parameter in self.layer.parameters()),
            state_elements=self._told_state(length),
            forward_flops_per_token=2 * sum(module.weight.numel() for module in linear),
        )

    def _told_state(self, length: int) -> int:
        layer = self.layer
        told = getattr(layer, "state_size", None)
        if callable(told):
            return int(told(seq_len=length))  # type: ignore[arg-type]
        heads = getattr(layer, "num_v_heads", None) or getattr(layer, "num_heads", None)
        value = getattr(layer, "head_v_dim", None)
        key = getattr(layer, "head_k_dim", None) or getattr(layer, "head_dim", None)
        return heads * key * value if heads and key and value else 0


def _seen(state: State | None, x: Tensor) -> Tensor:
    before = 0 if not state else int(state["seen"][0])
    return torch.full((x.shape[0],), before + x.shape[1], device=x.device)


def _flat(cached: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """A layer's cache as named tensors; parts of a tuple are numbered."""
    for name, value in cached.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((f"{name}.{i}", part) for i, part in enumerate(value) if part is not None)


def _cache_of(state: State | None) -> Any:
    """fla's cache with a state put back."""
    cache = importlib.import_module("fla.models.utils").Cache()
    if not state:
        return cache
    parts: dict[str, Any] = {}
    for name, value in state.items():
        whole, _, number = name.partition(".")
        if number:
            parts.setdefault(whole, {})[int(number)] = value
        elif name != "seen":
            parts[name] = value
    for name, value in parts.items():
        if isinstance(value, dict):
            parts[name] = tuple(value.get(i) for i in range(max(value) + 1))
    cache.update(layer_idx=0, offset=int(state["seen"][0]), **parts)
    return cache
