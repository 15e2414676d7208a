"""Small pieces of the sentences in which a plan is described."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SHOWN = 3  # names in a list before the rest is counted


def listed(names: Iterable[str], *, shown: int = SHOWN) -> str:
    """a, b and c;  a, b, c and 4 more."""
    all_names = list(dict.fromkeys(names))
    if len(all_names) > shown + 1:
        return f"{', '.join(all_names[:shown])} and {len(all_names) - shown} more"
    if len(all_names) < 2:
        return "".join(all_names)
    return f"{', '.join(all_names[:-1])} and {all_names[-1]}"


def grouped(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names that share a value, by the value as it is shown; the commonest value first."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(shown_value(value), []).append(name)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def by_value(values: Mapping[str, Any]) -> str:
    """'8 in a and b; 16 in c'."""
    return "; ".join(f"{value} in {listed(names)}" for value, names in grouped(values).items())


def shown_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(shown_value, value)) + "]"
    return "none" if value is None else str(value)


def percentage(share: float, *, digits: int = 2, sign: str = "") -> str:
    """So many significant digits, or a whole number where it has more: 0.36, 12, 120.

    sign: '+' to show it where the share is positive; a minus is a true one.
    """
    number = 100 * share
    few = abs(number) < 10**digits - 0.5
    return (f"{number:{sign}.{digits}g}" if few else f"{number:{sign},.0f}").replace("-", "−")


def percent(share: float) -> str:
    """A signed share: +1.2 %, +120 %."""
    return f"{percentage(share, sign='+')} %"


def counted(number: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def share(value: float) -> str:
    """An unsigned share to three digits: 0.3 %."""
    return f"{percentage(value, digits=3)} %"


def signed(value: float | None) -> str:
    """Three digits with a sign, a true minus; a dash for what is not known."""
    return "–" if value is None else f"{value:+.3g}".replace("-", "−")
