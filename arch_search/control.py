"""Was the comparison controlled? Unequal data, tokens, items, code or starts refuse it.

A difference that the experiment declares as a factor (its arms name it) is allowed and stated.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from arch_search.declarations import late_declarations
from arch_search.errors import UsageError
from arch_search.records import Experiment, RunRecord
from arch_search.seen import (
    data_fields,
    grouped,
    result_of,
    run_name,
    run_names,
    text_sentences,
    unequal_streams,
    unequal_text,
    unequal_tokens,
)
from arch_search.spec import content_hash
from arch_search.starts import shared_start_sentences, unequal_starts


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """What was found equal, what differs as declared, and what a reader should know."""

    equal: tuple[str, ...]
    declared: tuple[str, ...]
    warnings: tuple[str, ...]


def check_control(experiment: Experiment, finished: Sequence[RunRecord]) -> Control:
    """Check that the finished runs differ in the named factors alone.

    Raises:
        UsageError: a stream, a number of tokens, the evaluation items, the code or a shared start
            differ, and no factor says that they should; the message says which runs, where they
            part, what to do.
    """
    declared = _declared(experiment)
    equal: list[str] = []
    stated: list[str] = []
    for alike in grouped(finished, lambda run: repr(data_fields(run.arm))).values():
        if problem := unequal_tokens(alike) or unequal_streams(alike):  # whatever is declared
            raise UsageError(f"cannot compare {experiment.plan.name!r}: {problem}")
    if problem := unequal_text(finished):  # likewise
        raise UsageError(f"cannot compare {experiment.plan.name!r}: {problem}")
    for what, check in (
        ("tokens", unequal_tokens),
        ("streams", unequal_streams),
        ("items", _unequal_items),
        ("code", _unequal_code),
        ("starts", unequal_starts),
    ):
        problem = check(finished)
        allowed = declared if what in ("tokens", "streams", "items") else {}
        if problem and not allowed:
            raise UsageError(f"cannot compare {experiment.plan.name!r}: {problem}")
        if problem:
            stated.append(f"{problem} This follows from the declared {', '.join(sorted(allowed))}.")
        else:
            equal += _said(what, finished) if finished else []
    if declared:
        stated += text_sentences(finished)
    warnings = (*late_declarations(experiment.plan), *_warnings(finished))
    return Control(equal=tuple(equal), declared=tuple(stated), warnings=warnings)


def _declared(experiment: Experiment) -> set[str]:
    """Factors that change what data a run sees: those named like a field that differs.

    Raises:
        UsageError: the arms differ in a field of data or length that no factor names.
    """
    found, undeclared = set(), {}
    fields = [data_fields(arm) for arm in experiment.plan.arms]
    for name in fields[0]:
        levels = {repr(values[name]) for values in fields}
        if len(levels) == 1:
            continue
        factors = {axis for arm in experiment.plan.arms for axis in arm.factors}
        named = {axis.split(".")[-1] for axis in factors}
        if name in named or (name == "batch" and "sequence_length" in named):  # rows a step
            found.add(name)
        elif name != "manifest":  # follows from the corpus and the tokenizer
            undeclared[name] = levels
    if undeclared:
        listed = "; ".join(f"{n}: {', '.join(sorted(v))}" for n, v in sorted(undeclared.items()))
        raise UsageError(
            f"cannot compare {experiment.plan.name!r}: its arms differ in {listed}, which is not "
            "one of its factors; make it equal, or name it as a factor of the arms"
        )
    return found


def _unequal_items(runs: Sequence[RunRecord]) -> str:
    by_task: dict[str, dict[str, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for evaluation in run.evaluations:
            if "documents" in evaluation.tables:
                documents = evaluation.tables["documents"]
                items = content_hash([documents["document"], documents["bytes"]])
                by_task[evaluation.spec.hash][items].append(run)
    for groups in by_task.values():
        if len(groups) > 1:
            one, other = list(groups.values())[:2]
            evaluated = next(e for e in one[0].evaluations if "documents" in e.tables)
            return (
                f"{evaluated.spec.task} was measured on other documents in {run_names(one)} than "
                f"in {run_names(other)}; evaluate both again on the same split."
            )
    return ""


def _unequal_code(runs: Sequence[RunRecord]) -> str:
    """Arms of the same blocks must have used the same source: the hash covers used blocks only."""
    kinds = grouped(runs, _kinds)
    for blocks, same in kinds.items():
        codes = grouped(same, lambda run: run.planned.spec.code)
        if len(codes) > 1:
            (a, one), (b, other) = list(codes.items())[:2]
            return (
                f"{run_name(one[0])} and {run_name(other[0])} use the same blocks "
                f"({', '.join(blocks)}) but other source code ({a} and {b}); submit the experiment "
                "again, so that all arms run the same code."
            )
    return ""


def _said(what: str, runs: Sequence[RunRecord]) -> list[str]:
    """How a check that passed reads in the report; nothing where it had nothing to compare."""
    match what:
        case "tokens":
            return [f"Every finished run saw {result_of(runs[0])['tokens']:,} tokens."]
        case "streams":
            groups = grouped(runs, lambda run: run.planned.spec.data_seed)
            shared = sum(len(group) > 1 for group in groups.values())
            return [
                f"For each of {shared} data seeds, all its runs saw the same tokens in the same "
                "order (rolling hash of the stream)."
            ][: 1 if shared else 0]
        case "items":
            tables = [e.tables["documents"] for r in runs for e in r.evaluations
                      if "documents" in e.tables]  # fmt: skip
            if not tables:
                return []
            sizes = tables[0]["bytes"]
            return [f"All were scored on the same {len(sizes)} documents ({sum(sizes):,} bytes)."]
        case "starts":
            return shared_start_sentences(runs)
        case _:
            return ["Runs of the same blocks used the same source code (hash of what is executed)."]


def _warnings(runs: Sequence[RunRecord]) -> Iterable[str]:
    """Where runs were made under unequal circumstances that the hashes do not cover."""
    keys = {key for run in runs for key in _circumstances(run)}
    for key in sorted(keys):
        having = [run for run in runs if key in _circumstances(run)]
        seen = grouped(having, lambda run, key=key: str(_circumstances(run)[key]))
        if len(seen) > 1:
            long = 12 if key in _REPOSITORY else None  # of a hash, the beginning is enough
            values = ((value[:long] or "none", run_names(who)) for value, who in seen.items())
            listed = "; ".join(f"{value} ({who})" for value, who in values)
            equal = " (what trained them has equal hashes)" if key in _REPOSITORY else ""
            yield f"Unequal {key} between runs{equal}: {listed}."


_REPOSITORY = ("git commit", "diff hash")  # may change without changing what a run executes


def _circumstances(run: RunRecord) -> dict[str, Any]:
    """The environment, kernel backends and the code of evaluations each under a name of its own."""
    environment = dict(result_of(run)["environment"])
    backends = environment.pop("backends", {})
    versions = environment.pop("versions", {})
    environment.pop("backend_reasons", None)  # said of the backends, which are compared
    named = {key.replace("_", " "): value for key, value in environment.items()}
    named |= {f"version of {package}": value for package, value in versions.items()}
    named |= {f"kernel backend of {kind}": value for kind, value in backends.items()}
    tuned = result_of(run).get("tuned_kernels", {})
    named |= {f"tuned configuration of {kernel}": value for kernel, value in tuned.items()}
    for evaluation in run.evaluations:
        if "code" in evaluation.made:
            named[f"code of evaluation {evaluation.spec.task}"] = evaluation.made["code"]
    return named


def _kinds(run: RunRecord) -> tuple[str, ...]:
    return tuple(sorted({layer.kind for layer in run.planned.spec.model.layers}))
