"""The space of a sweep: what a trial is asked, one choice after the other, and what follows.

A space is a function of a trial that answers `suggest_*` as Optuna's do, so that a choice may
depend on those before it: options of a block are asked only where that block stands.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.pattern import parse_pattern
from arch_search.positions import rank_layers
from arch_search.sweep_spec import LayoutSpec, RangeSpec, SpaceSpec

ENUMERABLE = 20_000  # a space with more choices than these is only ever sampled

Scalar = str | int | float | bool | None


class Rejected(Exception):  # noqa: N818 (a fact about a draw)
    """A draw that is known to be of no use before anything is trained."""


class Suggests(Protocol):
    """What a space asks of a trial."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One point of a space: the name of each layer's block, and the numbers that were chosen."""

    names: tuple[str, ...]
    options: dict[str, dict[str, Scalar]]
    width: int | None = None
    mlp_width: int | None = None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """A space; `attention` are the block names that `before_attention` looks for."""

    spec: SpaceSpec
    attention: frozenset[str] = frozenset()

    def draw(self, trial: Suggests) -> Draw:
        """Ask a trial for everything that a model needs.

        Raises:
            Rejected: choices that contradict each other, as more layers of a block than there are.
        """
        names = self._layout(self.spec.layout, trial)
        options = {
            block: {
                name: _choose(trial, f"{block}.{name}", values)
                for name, values in sorted(asked.items())
            }
            for block, asked in sorted(self.spec.options.items())
            if block in names
        }
        numbers = {
            name: _choose(trial, name, values)
            for name in ("width", "mlp_width", "learning_rate")
            if (values := getattr(self.spec, name)) is not None
        }
        return Draw(names=names, options=options, **numbers)

    def draws(self) -> Iterator[tuple[dict[str, Any], Draw | Rejected]]:
        """Every point with its parameters. Raises Endless for a range without steps."""
        path: list[int] = []
        while True:
            replay = _Replay(path)
            try:
                found: Draw | Rejected = self.draw(replay)
            except Rejected as error:
                found = error
            yield replay.params, found
            path = replay.path
            while path and path[-1] + 1 == replay.widths[len(path) - 1]:
                path.pop()
            if not path:
                return
            path[-1] += 1

    def size(self) -> int | None:
        """How many points it has, unfit ones left out; None if over ENUMERABLE or endless."""
        count = 0
        try:
            for number, (_, found) in enumerate(self.draws()):
                if number >= ENUMERABLE:
                    return None
                count += isinstance(found, Draw)
        except Endless:
            return None
        return count

    def fixed(self, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The parameters that `given` fixes; `pattern` stands for the blocks of all slots.

        Raises:
            UsageError: a parameter that the space does not have or a value that it does not allow.
        """
        given = dict(given)
        if "pattern" in given:
            given = {**self._slots_of(str(given.pop("pattern")), where), **given}
        answers = _Given(given, where)
        try:
            self.draw(answers)
        except Rejected as error:
            raise UsageError(f"{where}: {error}") from None
        if left := sorted(given.keys() - answers.asked.keys()):
            asked = list(answers.asked)
            raise UsageError(
                f"{where}: nothing asks for {left[0]!r} there; {nearest(left[0], asked)}"
            )
        return given

    def answers(self, given: Mapping[str, Any], where: str) -> Draw:
        """The point at `given`, first choices for all that it leaves open."""
        return self.draw(_Given(given, where))

    def _slots_of(self, pattern: str, where: str) -> dict[str, Any]:
        layout = self.spec.layout
        if not layout.slots or layout.depth is None:
            raise UsageError(f"{where}: a pattern fixes slots, and this layout has none")
        try:
            names = parse_pattern(pattern)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        if len(names) not in layout.depth:
            raise UsageError(
                f"{where}: {pattern!r} has {len(names)} layers; expected "
                f"{' or '.join(map(str, layout.depth))}"
            )
        depth = {"depth": len(names)} if len(layout.depth) > 1 else {}
        return depth | {f"layer.{i}": name for i, name in enumerate(names)}

    def _layout(self, layout: LayoutSpec, trial: Suggests) -> tuple[str, ...]:
        if layout.pattern is not None:
            chosen = {
                name: _choose(trial, f"where.{name}", choices)
                for name, choices in layout.where.items()
            }
            return tuple(chosen.get(name, name) for name in parse_pattern(layout.pattern))
        assert layout.depth is not None
        depth = _choose(trial, "depth", layout.depth)
        if layout.slots:
            return tuple(_choose(trial, f"layer.{i}", layout.slots) for i in range(depth))
        return self._placed(layout, depth, trial)

    def _placed(self, layout: LayoutSpec, depth: int, trial: Suggests) -> tuple[str, ...]:
        """Blocks by count and position, one after the other among the layers still free."""
        assert layout.fill is not None
        names = [layout.fill] * depth
        for block, counts in layout.counts.items():
            count = _choose(trial, f"count.{block}", counts)
            if count == 0:
                continue
            position = _choose(trial, f"position.{block}", layout.positions)
            free = [i for i, name in enumerate(names) if name == layout.fill]
            attention = [i for i, name in enumerate(names) if name in self.attention]
            try:
                for layer in rank_layers(free, position, count, attention):
                    names[layer] = block
            except UsageError as error:
                text = str(error).removeprefix("arms.").removeprefix("count ")
                raise Rejected(f"{block}: {text}") from None
        return tuple(names)


class Endless(Exception):  # noqa: N818
    """A space that cannot be listed."""


def _choose(trial: Suggests, name: str, values: RangeSpec | Sequence[Any]) -> Any:
    """One value; a single choice is no question."""
    if not isinstance(values, RangeSpec):
        return values[0] if len(values) == 1 else trial.suggest_categorical(name, list(values))
    low, high, step = values.low, values.high, values.step
    if values.is_whole:
        return trial.suggest_int(name, int(low), int(high), step=int(step or 1), log=values.log)
    return trial.suggest_float(name, float(low), float(high), step=step, log=values.log)


class _Replay:
    """Answers with the choices of a path, then with first ones; remembers how many there were."""

    def __init__(self, path: Sequence[int]) -> None:
        self.path, self._given = list(path), len(path)
        self.widths: list[int] = []
        self.params: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        at = len(self.widths)
        if at >= len(self.path):
            self.path.append(0)
        self.widths.append(len(choices))
        self.params[name] = choices[self.path[at]]
        return self.params[name]

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return self.suggest_categorical(name, range(low, high + 1, step))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        if step is None:
            raise Endless
        count = int((high - low) / step + 1e-9) + 1
        return self.suggest_categorical(name, [low + i * step for i in range(count)])


class _Given:
    """Answers with what was given, else with the first choice; refuses what is no choice."""

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        self._given, self._where = given, where
        self.asked: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        value = self._given.get(name, choices[0])
        if value not in choices:
            listed = ", ".join(map(str, choices))
            raise UsageError(f"{self._where}: {name} is {value!r}; expected one of {listed}")
        self.asked[name] = value
        return value

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return self._number(name, low, high)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return self._number(name, low, high)

    def _number(self, name: str, low: Any, high: Any) -> Any:
        value = self._given.get(name, low)
        if isinstance(value, bool | str) or not low <= value <= high:
            raise UsageError(f"{self._where}: {name} is {value!r}; expected {low:g} to {high:g}")
        self.asked[name] = value
        return value
