"""Keep a quantity equal over the arms by turning one named knob, and say what is left over.

    hold: {parameters: 0.5%, by: replaced.mlp.width}

A knob is `replaced.mlp.width`, `mlp.width`, or `replaced.<whole-number option>`. It moves in the
coarsest power of two (at most 64) that reaches the tolerance: sizes stay friendly to kernels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from arch_search.errors import UsageError
from arch_search.experiment import HoldFile, nearest
from arch_search.model import ModelCounts, count_model
from arch_search.spec import LayerSpec, ModelSpec

QUANTITIES = {
    "parameters": "parameters",
    "state": "state_elements",
    "flops": "forward_flops_per_token",
}
GRAINS = (64, 32, 16, 8, 4, 2, 1)
LARGEST = 2**20
ROUNDS = 8  # of turning each knob in turn, when there are several


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A model after its knobs were turned: where they stand, and what is left of each quantity."""

    model: ModelSpec
    knobs: dict[str, int]
    residue: dict[str, float]  # relative to the target


def check_holds(holds: Sequence[HoldFile], varied: Sequence[str]) -> None:
    """Raises UsageError for a hold without a quantity, two with one knob, or a knob under study."""
    knobs = [hold.by for hold in holds]
    for hold in holds:
        if len(_quantities(hold)) != 1:
            known = ", ".join(QUANTITIES)
            raise UsageError(f"hold: each hold names one quantity ({known}) and one knob 'by'")
        if knobs.count(hold.by) > 1:
            raise UsageError(f"hold: the knob {hold.by} cannot keep two quantities at once")
        knob = hold.by.removeprefix("replaced.")
        if any(knob == name or name.endswith(f".{knob}") for name in varied):
            raise UsageError(f"hold.by: {hold.by} is what the arms vary; turn another knob")


def hold_model(
    model: ModelSpec,
    replaced: Sequence[int],
    holds: Sequence[HoldFile],
    target: ModelCounts,
    length: int,
    resolve: Callable[[LayerSpec, Mapping[str, int]], LayerSpec],
) -> Held:
    """Turn each hold's knob until its quantity is that of `target`.

    Args:
        replaced: the layers that `replaced.*` knobs act on.
        length: tokens in a sequence, for the counts.
        resolve: a layer with some options changed, checked and completed.
    Raises:
        UsageError: demands that cannot be met, alone or together, with how far off they stay.
    """
    knobs: dict[str, int] = {}
    residue: dict[str, float] = {}
    for _ in range(ROUNDS):
        for hold in holds:
            turn = _knob(hold.by, model, replaced, resolve)
            quantity = QUANTITIES[_quantities(hold)[0]]
            model, knobs[hold.by] = _turn(turn, quantity, hold, target, length)
        residue = _residue(model, holds, target, length)
        if all(abs(residue[q]) <= getattr(h, q) for h in holds for q in _quantities(h)):
            return Held(model=model, knobs=knobs, residue=residue)
    missed = "; ".join(
        f"{q} by {h.by} stays {residue[q]:+.2%} off (asked: {getattr(h, q):.2%})"
        for h in holds
        for q in _quantities(h)
        if abs(residue[q]) > getattr(h, q)
    )
    raise UsageError(f"hold: {missed}; allow more, or turn another knob")


def _quantities(hold: HoldFile) -> list[str]:
    return [name for name in QUANTITIES if getattr(hold, name) is not None]


def _residue(
    model: ModelSpec, holds: Sequence[HoldFile], target: ModelCounts, length: int
) -> dict[str, float]:
    counts = count_model(model, length)
    names = {name for hold in holds for name in _quantities(hold)}
    fields = {name: QUANTITIES[name] for name in QUANTITIES if name in names}
    return {n: getattr(counts, f) / getattr(target, f) - 1 for n, f in fields.items()}


def _knob(
    name: str,
    model: ModelSpec,
    replaced: Sequence[int],
    resolve: Callable[[LayerSpec, Mapping[str, int]], LayerSpec],
) -> Callable[[int], ModelSpec]:
    """The model as a function of the knob's value."""
    scope, _, option = name.partition(".")
    layers = list(replaced) if scope == "replaced" else list(range(len(model.layers)))
    if name not in ("mlp.width", "replaced.mlp.width") and (scope != "replaced" or not option):
        known = "replaced.mlp.width, mlp.width, replaced.<option>"
        raise UsageError(f"hold.by: unknown knob {name!r}; known: {known}")
    if scope == "replaced" and option != "mlp.width":
        for i in layers:
            value = model.layers[i].options.get(option)
            if not isinstance(value, int) or isinstance(value, bool):
                numbers = [k for k, v in model.layers[i].options.items() if type(v) is int]
                raise UsageError(
                    f"hold.by: {model.layers[i].kind} has no whole-number option {option!r}; "
                    f"{nearest(option, numbers)}"
                )

    def turned(value: int) -> ModelSpec:
        changed = list(model.layers)
        for i in layers:
            layer = changed[i]
            if option.endswith("width") and option in ("mlp.width", "width"):
                changed[i] = replace(layer, mlp_width=value)
            else:
                changed[i] = resolve(layer, {option: value})
        return replace(model, layers=tuple(changed))

    return turned


def _turn(
    turn: Callable[[int], ModelSpec],
    quantity: str,
    hold: HoldFile,
    target: ModelCounts,
    length: int,
) -> tuple[ModelSpec, int]:
    """The friendliest value of the knob within the tolerance; else the nearest of all."""
    wanted: float = getattr(target, quantity)
    tolerance: float = getattr(hold, _quantities(hold)[0])

    @cache
    def off(value: int) -> float:
        return getattr(count_model(turn(value), length), quantity) / wanted - 1

    best = _crossing(off)
    candidates: list[int] = []
    for grain in GRAINS:
        near = {max(best // grain * grain, grain), -(-(best + 1) // grain) * grain}
        candidates += sorted(near, key=lambda value: abs(off(value)))
        if abs(off(candidates[-2] if len(near) == 2 else candidates[-1])) <= tolerance:
            break
    value = next((v for v in candidates if abs(off(v)) <= tolerance), None)
    if value is None:
        value = min(candidates, key=lambda v: abs(off(v)))
    return turn(value), value


def _crossing(off: Callable[[int], float]) -> int:
    """The largest value at which the quantity is not above the target, for one that grows."""
    slope = (off(257) - off(1)) / 256  # most quantities are linear in their knob: guess, then look
    if slope > 0 and 1 <= (guess := int(1 - off(1) / slope)) < LARGEST:
        for low in (guess - 1, guess, guess + 1):
            if low >= 1 and off(low) <= 0 < off(low + 1):
                return low
    low, high = 1, 2
    while off(high) <= 0 and high < LARGEST:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if off(middle) <= 0 else (low, middle)
    return low
