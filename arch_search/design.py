"""Arms: which layers are replaced, by what, in which combinations.

A position is a ranking of the replaceable layers, and a count takes a prefix of it. Factors that
only exist under a replacement are nested under it: the baseline has none.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arch_search.cells import PLACES, control_cell, full_factorial, listed_cell
from arch_search.errors import UsageError
from arch_search.experiment import ArmsFile, nearest, parse_count
from arch_search.optimal import choose_cells
from arch_search.positions import RANKINGS, rank_layers

LENGTH = "sequence_length"
SALT = "init_salt"  # an axis like an option of the block, but one that has no effect


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One variant before its options are resolved.

    `replaced` are the layers that differ from the base pattern; `options` what they override;
    `changes` is what an explicit arm overrides in the experiment file.
    """

    name: str
    factors: dict[str, Any]
    layers: tuple[str, ...]
    replaced: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    is_baseline: bool = False
    is_control: bool = False
    init_salt: int = 0
    length: int = 0  # tokens in a row; 0: as the file says


def make_arms(
    arms: ArmsFile,
    layers: tuple[str, ...],
    *,
    baseline: bool,
    is_attention: Callable[[str], bool],
    solve: Callable[[str, str, str, int], int],
    interactions: Sequence[tuple[str, str]] = (),
    subsets: Sequence[Mapping[str, Any]] = (),
) -> tuple[Arm, ...]:
    """All arms of an experiment over the base pattern `layers`, the baseline first.

    Args:
        is_attention: whether a layer's name is softmax attention.
        solve: (block, quantity, knob, target) -> the knob's value that comes nearest to the target.
        interactions: pairs of factors whose interaction a subset (`choose`) must tell.
        subsets: levels of factors among which it must tell the effects of the others.
    Raises:
        UsageError: axes that do not fit each other or the pattern.
    """
    made = [Arm(name="baseline", factors={}, layers=layers, is_baseline=True)] if baseline else []
    if arms.replace is not None:
        cells = _cells(arms, interactions, subsets)
        made += _replacements(arms, layers, is_attention, solve, cells)
    elif any((arms.with_, arms.count, arms.position, arms.at, arms.vary, arms.cells,
              arms.controls, arms.choose)):  # fmt: skip
        raise UsageError("arms: say which block is replaced, as in 'replace: gdn'")
    for name, changes in arms.explicit.items():
        made.append(Arm(name=_slug(name), factors={"arm": name}, layers=layers, changes=changes))
    if not made:
        raise UsageError(
            "the experiment has no arm; give baseline: {}, arms.replace or arms.explicit"
        )
    if arms.lengths:
        made = [_at_length(arm, length) for arm in made for length in arms.lengths]
    names = [arm.name for arm in made]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"arms: the name {sorted(twice)[0]!r} stands for two different arms")
    return tuple(made)


def _at_length(arm: Arm, length: int) -> Arm:
    """An arm trained on rows of another length; the first of a baseline stays the baseline."""
    return replace(
        arm,
        name=f"{arm.name}-{LENGTH}={length}",
        factors={**arm.factors, f"data.{LENGTH}": length},
        is_baseline=False,
        length=length,
    )


def _cells(
    arms: ArmsFile,
    interactions: Sequence[tuple[str, str]],
    subsets: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The combinations that are listed, or all, or those of them that are chosen."""
    levels = _levels(arms)
    cells = [listed_cell(cell, levels) for cell in arms.cells] or full_factorial(levels)
    return choose_cells(cells, arms.choose, interactions, subsets) if arms.choose else cells


def _replacements(
    arms: ArmsFile,
    layers: tuple[str, ...],
    is_attention: Callable[[str], bool],
    solve: Callable[[str, str, str, int], int],
    cells: Sequence[dict[str, Any]],
) -> Iterator[Arm]:
    assert arms.replace is not None
    replaceable = [i for i, name in enumerate(layers) if name == arms.replace]
    if not replaceable:
        known = nearest(arms.replace, sorted(set(layers)))
        raise UsageError(f"arms.replace: no layer is called {arms.replace!r}; {known}")
    attention = [i for i, name in enumerate(layers) if is_attention(name)]
    levels = _levels(arms)
    for cell in cells:
        shown = {axis: level for axis, level in cell.items() if axis in levels}
        yield _arm_of_cell(
            cell, arms, layers, _chosen_layers(cell, replaceable, attention), solve,
            name=_name(shown, levels),
            factors={axis: _plain(level) for axis, level in shown.items()},
        )  # fmt: skip
    for name, given in arms.controls.items():
        cell = control_cell(name, given, levels)
        yield _arm_of_cell(
            cell, arms, layers, _chosen_layers(cell, replaceable, attention), solve,
            name=_slug(name), factors={"control": name}, is_control=True,
        )  # fmt: skip


def _arm_of_cell(
    cell: Mapping[str, Any],
    arms: ArmsFile,
    layers: tuple[str, ...],
    chosen: tuple[int, ...],
    solve: Callable[[str, str, str, int], int],
    *,
    name: str,
    factors: dict[str, Any],
    is_control: bool = False,
) -> Arm:
    block = cell["with"]
    axes = {k: v for k, v in cell.items() if k not in ("with", *PLACES)}
    options = dict(
        _option(block, axis, level, arms.vary.get(axis), solve) for axis, level in axes.items()
    )
    salt = options.pop(SALT, 0)
    if type(salt) is not int or salt < 0:
        raise UsageError(f"arms: {SALT} is {salt!r}; expected a whole number, 0 for no new draw")
    return Arm(
        name=name,
        factors=factors,
        layers=tuple(block if i in chosen else layer for i, layer in enumerate(layers)),
        replaced=chosen,
        options=options,
        is_control=is_control,
        init_salt=salt,
    )


def _levels(arms: ArmsFile) -> dict[str, list[Any]]:
    """Each axis with its levels, in the order in which they stand in an arm's name."""
    if not arms.with_:
        raise UsageError(
            "arms.with is missing: say which block takes the place of the replaced one"
        )
    levels: dict[str, list[Any]] = {"with": list(arms.with_)}
    if arms.at and (arms.count or arms.position):
        raise UsageError("arms: give either 'at' or 'count' with 'position', not both")
    if bool(arms.count) != bool(arms.position) and not arms.cells:
        raise UsageError("arms: 'count' and 'position' go together; give both, or 'at'")
    if arms.count:
        levels |= {"count": list(arms.count), "position": list(arms.position)}
    elif arms.at:
        levels["at"] = [tuple(arms.at)]
    for axis, given in arms.vary.items():
        values = given
        if isinstance(given, Mapping):
            quantities = [key for key in given if key != "by"]
            if "by" not in given or quantities != ["elements"] or axis != "state":
                raise UsageError(
                    f"arms.vary.{axis}: write a list of values, or for the state's size "
                    "'state: {elements: [4K, 16K], by: key_dim}'"
                )
            values = [parse_count(value) for value in given["elements"]]
        if not isinstance(values, list | tuple) or not values:
            raise UsageError(f"arms.vary.{axis}: expected a list of values, got {given!r}")
        levels[axis] = list(values)
    for cell in arms.cells:
        for axis in cell:
            levels.setdefault(axis, [])
    return levels


def _chosen_layers(
    cell: Mapping[str, Any], replaceable: Sequence[int], attention: Sequence[int]
) -> tuple[int, ...]:
    if "at" in cell:
        return rank_layers(replaceable, cell["at"], len(cell["at"]), attention)
    if "count" in cell:
        if cell["count"] < 1:
            raise UsageError(
                f"arms.count: {cell['count']} layers; the baseline is the arm with none"
            )
        if "position" not in cell:
            raise UsageError(f"arms.cells: {dict(cell)} gives a count without a position")
        position = cell["position"]
        if isinstance(position, str) and position not in RANKINGS:
            known = nearest(position, RANKINGS)
            raise UsageError(f"arms.position: unknown ranking {position!r}; {known}")
        return rank_layers(replaceable, position, cell["count"], attention)
    return tuple(replaceable)


def _option(
    block: str, axis: str, level: Any, given: Any, solve: Callable[[str, str, str, int], int]
) -> tuple[str, Any]:
    if not isinstance(given, Mapping):
        return axis, level
    knob = given["by"]
    if isinstance(knob, Mapping):  # mixers call the rows of their states differently
        if block not in knob:
            raise UsageError(
                f"arms.vary.{axis}.by: no option for {block!r}; given for {', '.join(knob)}"
            )
        knob = knob[block]
    return knob, solve(block, axis, knob, level)


def _plain(level: Any) -> Any:
    return list(level) if isinstance(level, tuple) else level


def _name(cell: Mapping[str, Any], levels: Mapping[str, Sequence[Any]]) -> str:
    """The levels, with their axis where they do not speak for themselves; no place of all arms."""
    words = [level for values in levels.values() for level in values if isinstance(level, str)]
    shown = []
    for axis, level in cell.items():
        if axis == "at" and list(levels["at"]) == [level]:
            continue
        text = "+".join(map(str, level)) if isinstance(level, tuple) else str(level)
        speaks = axis in ("with", "count", "position") or isinstance(level, tuple)
        speaks = speaks or (isinstance(level, str) and words.count(level) == 1)
        shown.append(text if speaks else f"{axis}={level}")
    return _slug("-".join(shown))


def _slug(name: str) -> str:
    """A name that is safe in paths, URLs and MLflow."""
    slug = re.sub(r"[^A-Za-z0-9_.=+-]+", "_", name).strip("._")
    if not slug:
        raise UsageError(f"arms: {name!r} leaves no letter for a name")
    return slug
