"""Count and position read off the layouts, for arms that were written out one by one."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arch_search.confounds.aliasing import NEITHER, combinations, together
from arch_search.factors import is_estimable, separating_cells
from arch_search.plan_spec import ArmSpec, FindingSpec
from arch_search.positions import name_positions
from arch_search.wording import listed

ATTENTION = "attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Placed:
    """One arm seen as a backbone some of whose layers another mixer takes."""

    arm: str
    layers: tuple[int, ...]
    names: tuple[str, ...]  # rankings that these layers begin; their numbers if none


def aliased_layouts(arms: Sequence[ArmSpec]) -> Iterator[FindingSpec]:
    """Whether, over arms of one backbone, the number of replaced layers moves with their place.

    Arms belong together if putting the backbone's mixer back gives the same layers; the backbone
    is the mixer with more layers. An arm with every layer replaced has only one position, and says
    nothing of it.
    """
    told: dict[str, list[str]] = {}
    for (guest, host), placed in _families(arms).items():
        cells = _cells(placed)
        levels = [{c[name] for c in cells} for name in ("count", "position")]
        if min(map(len, levels), default=0) < 2 or is_estimable(cells, "count", ["position"]):
            continue
        text = f"{together(cells, 'count', 'position')}; {NEITHER}"
        if extra := separating_cells(cells, "count", "position"):
            text += f" Arms that would separate them: {combinations(extra)}."
        told.setdefault(f"{guest}: its count and position move together: {text}", []).append(host)
    for text, hosts in told.items():
        guest, _, rest = text.partition(":")
        yield FindingSpec(
            level="warning",
            subject="aliased factors",
            text=f"{guest} among {listed(hosts)} layers:{rest}",
        )


def placed_cells(arms: Sequence[ArmSpec]) -> dict[str, list[dict[str, int | str]]]:
    """Count and position as read off written-out layouts, by 'guest among host layers'."""
    return {
        f"{guest} among {host} layers": _cells(placed)
        for (guest, host), placed in _families(arms).items()
    }


def _families(arms: Sequence[ArmSpec]) -> dict[tuple[str, str], list[_Placed]]:
    explicit = [arm for arm in arms if "arm" in arm.factors or arm.is_baseline]
    if not any("arm" in arm.factors for arm in explicit):
        return {}  # axes give count and position as factors
    layouts = {arm.name: tuple(layer.kind for layer in arm.model.layers) for arm in explicit}
    kinds = sorted({kind for layout in layouts.values() for kind in layout} - {ATTENTION})
    families: dict[tuple[str, str], list[_Placed]] = {}
    for guest in kinds:
        for host in kinds:
            if guest == host:
                continue
            backbones = Counter(_restored(layout, guest, host) for layout in layouts.values())
            for backbone, shared in backbones.items():
                if shared > 2 and layouts and backbone in layouts.values():
                    placed = [
                        _place(name, layout, backbone, guest, host)
                        for name, layout in layouts.items()
                        if guest in layout and _restored(layout, guest, host) == backbone
                    ]
                    families[guest, host] = placed
    return families


def _restored(layout: tuple[str, ...], guest: str, host: str) -> tuple[str, ...]:
    return tuple(host if kind == guest else kind for kind in layout)


def _place(
    name: str, layout: tuple[str, ...], backbone: tuple[str, ...], guest: str, host: str
) -> _Placed:
    layers = tuple(i for i, kind in enumerate(layout) if kind == guest)
    replaceable = [i for i, kind in enumerate(backbone) if kind == host]
    if 2 * len(layers) > len(replaceable):
        return _Placed(arm=name, layers=layers, names=())
    attention = [i for i, kind in enumerate(backbone) if kind == ATTENTION]
    names = name_positions(layers, replaceable, attention)
    return _Placed(
        arm=name, layers=layers, names=tuple(names) or (f"layers {', '.join(map(str, layers))}",)
    )


def _cells(placed: Sequence[_Placed]) -> list[dict[str, int | str]]:
    """Count and position of each; of several names for a place, the one most arms have."""
    common = Counter(name for one in placed for name in one.names)
    return [
        {"count": len(one.layers), "position": max(one.names, key=lambda name: common[name])}
        for one in placed
        if one.names
    ]


def places(arms: Sequence[ArmSpec]) -> Iterator[FindingSpec]:
    """Which mixer follows the replaced layers, where the positions under study differ in that."""
    after: dict[str, set[str]] = {}
    for arm in arms:
        kinds = [layer.kind for layer in arm.model.layers] + ["the output"]
        if isinstance(position := arm.factors.get("position"), str):
            after.setdefault(position, set()).update(
                kinds[i + 1] for i in arm.replaced if i + 1 not in arm.replaced
            )
    always = [position for position, kinds in after.items() if kinds == {ATTENTION}]
    never = [position for position, kinds in after.items() if ATTENTION not in kinds]
    if always and never:
        text = (
            f"a replaced layer stands just before attention in position {listed(always)}, never in "
            f"{listed(never)}: depth and neighbour change together"
        )
        yield FindingSpec(level="limit", subject="neighbours", text=text)
