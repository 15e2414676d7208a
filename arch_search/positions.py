"""Positions: rankings of the replaceable layers, of which a count takes a prefix."""

from collections.abc import Sequence

from arch_search.errors import UsageError
from arch_search.experiment import Position

RANKINGS = ("first", "last", "before_attention", "spread")


def rank_layers(
    replaceable: Sequence[int], position: Position, count: int, attention: Sequence[int]
) -> tuple[int, ...]:
    """The `count` layers that a position chooses among the replaceable ones, ascending.

    first: ascending; last: descending; before_attention: by distance to the next attention layer,
    then by index; spread: the ⌊(i+½)M/n⌋-th; a list of layers: in the order given.

    Raises:
        UsageError: more layers asked for than there are, or a listed layer cannot be replaced.
    """
    if isinstance(position, tuple):
        for layer in position:
            if layer not in replaceable:
                raise UsageError(
                    f"arms.position lists layer {layer}, which cannot be replaced; "
                    f"replaceable layers: {', '.join(map(str, replaceable))}"
                )
        ranking = list(position)
    elif position == "first":
        ranking = sorted(replaceable)
    elif position == "last":
        ranking = sorted(replaceable, reverse=True)
    elif position == "before_attention":
        if not attention:
            raise UsageError("arms.position: before_attention needs an attention layer; add one")
        ranking = sorted(replaceable, key=lambda i: (_distance_to_next(i, attention), i))
    else:
        total = len(replaceable)
        picks = [(2 * i + 1) * total // (2 * count) for i in range(min(count, total))]
        ranking = [sorted(replaceable)[pick] for pick in picks]
    if count > len(ranking):
        available = len(replaceable) if not isinstance(position, tuple) else len(position)
        raise UsageError(f"arms.count asks for {count} layers; only {available} can be replaced")
    return tuple(sorted(ranking[:count]))


def _distance_to_next(layer: int, attention: Sequence[int]) -> float:
    return min((other - layer for other in attention if other > layer), default=float("inf"))


def name_positions(
    chosen: Sequence[int], replaceable: Sequence[int], attention: Sequence[int]
) -> list[str]:
    """The rankings of which these layers are a prefix; empty if they follow none."""
    names = [name for name in RANKINGS if name != "before_attention" or attention]
    return [
        name
        for name in names
        if rank_layers(replaceable, name, len(chosen), attention) == tuple(sorted(chosen))  # type: ignore[arg-type]
    ]
