"""What runs saw: how many tokens, in which order, and the text apart from order.

Arms with one data seed see the same tokens. Where a declared factor changes how these are read, the
same text may still be due, and is then asked for: see `unequal_text`.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from arch_search.journal import read_stream, read_text
from arch_search.plan_spec import ArmSpec
from arch_search.records import RunRecord

Item = TypeVar("Item")
SAME_BATCHES = {"reset", "curriculum"}
"""Fields of data that cut or reset a corpus's rows and leave each step's tokens as they are."""
SAME_ROWS = {"batch", *SAME_BATCHES}
"""Those that leave the rows and their order as they are."""


def data_fields(arm: ArmSpec) -> dict[str, Any]:
    return {**asdict(arm.data), "tokens": arm.train.tokens}


def unequal_tokens(runs: Sequence[RunRecord]) -> str:
    groups = grouped(runs, lambda run: result_of(run)["tokens"])
    if len(groups) <= 1:
        return ""
    seen = "; ".join(f"{tokens:,} in {run_names(who)}" for tokens, who in groups.items())
    return f"its runs saw unequal numbers of tokens: {seen}."


def unequal_streams(runs: Sequence[RunRecord]) -> str:
    for seed, same_seed in grouped(runs, lambda run: run.planned.spec.data_seed).items():
        groups = grouped(same_seed, lambda run: result_of(run)["stream"]["tokens"])
        if len(groups) > 1:
            (_, one), (_, other) = list(groups.items())[:2]
            return (
                f"{run_name(one[0])} and {run_name(other[0])} share data seed {seed} but not their "
                f"token stream ({result_of(one[0])['stream']['tokens'][:16]} and "
                f"{result_of(other[0])['stream']['tokens'][:16]}); {_where(one[0], other[0])}."
            )
    return ""


def _where(one: RunRecord, other: RunRecord) -> str:
    """From which logged step two streams differ, as the journals tell."""
    left, right = read_stream(one.folder), read_stream(other.folder)
    common = sorted(left.keys() & right.keys())
    parted = [step for step in common if left[step] != right[step]]
    if not common:
        return "their journals share no logged step, so it is not known where they part"
    if not parted:
        return f"they are equal up to step {common[-1]}, the last one both logged"
    before = max((step for step in common if step < parted[0]), default=0)
    return f"they part after step {before} and no later than step {parted[0]}"


def unequal_text(runs: Sequence[RunRecord]) -> str:
    """Where runs saw other text though they differ only in how the same rows are taken.

    As many rows of one length come in one order whatever the batch, resets and curriculum are: the
    hash of the text, which is apart from order, has to be equal. If the batch is equal, too, so
    are the tokens of each step.
    """
    for one, other in _pairs(runs):
        differing = _differing(one, other)
        batches = one.arm.data.task is None and differing <= SAME_BATCHES
        if batches and (problem := unequal_streams([one, other])):
            return problem
        if _same_rows(one, other, differing) and _text(one) != _text(other):
            return (
                f"{run_name(one)} and {run_name(other)} share data seed "
                f"{one.planned.spec.data_seed} and differ in {', '.join(sorted(differing))} alone, "
                f"but saw other text; {_where_text(one, other)}."
            )
    return ""


def text_sentences(runs: Sequence[RunRecord]) -> list[str]:
    """For each difference in how runs read their data: whether the text is the same."""
    pairs = grouped(_pairs(runs), lambda pair: ", ".join(sorted(_differing(*pair))))
    said = []
    for what, alike in pairs.items():
        parted = next((pair for pair in alike if _text(pair[0]) != _text(pair[1])), None)
        one, other = parted or alike[0]
        both = f"{run_name(one)} and {run_name(other)}"
        if parted is None:
            said.append(f"Across {what} the same text was seen (hash apart from order: {both}).")
        else:
            sizes = " and ".join(f"{_amount(run):,}" for run in (one, other))
            said.append(
                f"Across {what} other parts of the text were seen ({both}: {sizes} {_unit(one)}): "
                "how it is cut decides what comes first, and only whole passes over it are equal."
            )
    return said


def _pairs(runs: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Runs of one data seed that read the data in two ways, one run for each way."""
    for same_seed in grouped(runs, lambda run: run.planned.spec.data_seed).values():
        ways = grouped(same_seed, lambda run: repr(data_fields(run.arm)))
        yield from itertools.combinations([way[0] for way in ways.values()], 2)


def _differing(one: RunRecord, other: RunRecord) -> set[str]:
    left, right = data_fields(one.arm), data_fields(other.arm)
    return {key for key in left if left[key] != right[key]}


def _same_rows(one: RunRecord, other: RunRecord, differing: set[str]) -> bool:
    cut_alike = differing <= (SAME_ROWS if one.arm.data.task is None else {"batch"})
    fixed = one.arm.data.task is None or one.arm.data.curriculum is None
    return bool(differing) and cut_alike and fixed and not unequal_tokens([one, other])


def _where_text(one: RunRecord, other: RunRecord) -> str:
    """After how many tokens the text of two runs differs, as the journals tell."""
    left, right = _text_by_tokens(one), _text_by_tokens(other)
    common = sorted(left.keys() & right.keys())
    parted = [tokens for tokens in common if left[tokens] != right[tokens]]
    if not parted:
        return "their journals do not tell from where on"
    before = max((tokens for tokens in common if tokens < parted[0]), default=0)
    return f"they part after {before:,} tokens and no later than after {parted[0]:,}"


def _text_by_tokens(run: RunRecord) -> dict[int, str]:
    a_step = run.arm.data.batch * run.arm.data.sequence_length
    return {step * a_step: text for step, text in read_text(run.folder).items()}


def _text(run: RunRecord) -> str:
    return result_of(run)["stream"]["text"]


def _amount(run: RunRecord) -> int:
    return int(_text(run)[16:] or "0", 16)


def _unit(run: RunRecord) -> str:
    return "bytes" if run.arm.data.task is None else "items"


def result_of(run: RunRecord) -> dict[str, Any]:
    assert run.result is not None, "only finished runs are checked"
    return run.result


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> dict[Any, list[Item]]:
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def run_name(run: RunRecord) -> str:
    return f"{run.arm.name}/{run.planned.seed}"


def run_names(runs: Sequence[RunRecord]) -> str:
    names = [run_name(run) for run in runs]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
