"""`arch-search evaluate`: evaluations of a finished run, a checkpoint or an imported model."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.table import Table

from arch_search.commands.screen import screen
from arch_search.errors import UsageError
from arch_search.storage import Root

if TYPE_CHECKING:
    from arch_search.later_evaluation import Outcome


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="experiment/arm/seed, a run's hash, a "
                                       "checkpoint's folder, an import's name, or an experiment "
                                       "for all its finished runs.")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of "
                       "the one --task, as in tasks=[piqa] limit=100.")] = None,
    tasks: Annotated[list[str] | None, typer.Option("--task", "-t", help="An evaluation as in the "
                     "experiment file: a name, or {name: {option: value}}; may be given several "
                     "times. Without it: what was evaluated.")] = None,
    step: Annotated[int | None, typer.Option("--step", help="A run's checkpoint of this step; the "
                                             "last one if not given.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what was evaluated before; says "
                                        "whether it is equal.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train a finished run again whose last "
                                          "checkpoint is lost.")] = False,
    corpus: Annotated[str, typer.Option("--corpus", help="The text, for an imported model; a "
                                         "trained run is evaluated beside its own.")] = "",
    tokenizer: Annotated[str, typer.Option("--tokenizer", help="The imported model's own, as in "
                                           "file=tokenizer.json; bytes if not given.")] = "",
    length: Annotated[int, typer.Option("--length", min=0, help="Its training length, if it does "
                                        "not say it.")] = 0,
    device: Annotated[str, typer.Option("--device", help="As torch names it; a GPU if there is one."
                                        )] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Evaluate a trained model, and keep what was found with its run."""
    root = Root()
    if options and not tasks:
        raise UsageError(f"{options[0]!r} is an option of an evaluation; name it by --task")
    if not tasks and not retrain and not again:
        _show(_kept(root, run, step), as_json=as_json)
        return
    from arch_search.commands.data import read_spec
    from arch_search.commands.device import named_device
    from arch_search.later_evaluation import (
        Corpus,
        evaluate_stored,
        find_models,
        kept_evaluations,
        show_in_mlflow,
    )
    from arch_search.retraining import retrain as train_again
    from arch_search.tasks.registry import resolve

    evaluations = resolve(_entries(tasks or [], options or []))
    where = named_device(device)
    console = screen(stderr=True)
    if retrain:
        train_again(root, run, device=where, say=console.print)
    spec = read_spec((tokenizer or "bytes").split(","))
    text = Corpus(corpus=corpus, tokenizer=spec, sequence_length=length)
    found: list[Outcome] = []
    models = find_models(root, run, step=step) if evaluations or again else []
    for model in models:
        found += evaluate_stored(
            root, model, evaluations or kept_evaluations(root, model), device=where, again=again,
            say=console.print, corpus=text if corpus or tokenizer or length else None,
        )  # fmt: skip
    if models:
        _show(found, as_json=as_json)
    show_in_mlflow(root, models, console.print)


def _entries(tasks: Sequence[str], options: Sequence[str]) -> list[Any]:
    """The evaluations as an experiment file would list them."""
    entries = [_yaml(text, "--task") for text in tasks]
    if not options:
        return entries
    if len(entries) != 1 or not isinstance(entries[0], str):
        raise UsageError(
            f"{options[0]!r} is an option of one evaluation; give exactly one --task NAME, or "
            "write them as --task '{name: {option: value}}'"
        )
    pairs = [option.partition("=") for option in options]
    if bad := next((key for key, sign, _ in pairs if not sign), None):
        raise UsageError(f"{bad!r}: expected KEY=VALUE, as in limit=100")
    return [{entries[0]: {key: _yaml(value, key) for key, _, value in pairs}}]


def _yaml(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: {text!r} is not YAML: {str(error).splitlines()[0]}") from None


def _kept(root: Root, text: str, step: int | None) -> list["Outcome"]:
    from arch_search.later_evaluation import find_models, kept_outcomes

    return [one for model in find_models(root, text, step=step)
            for one in kept_outcomes(root, model)]  # fmt: skip


def _show(found: Iterable["Outcome"], *, as_json: bool) -> None:
    outcomes = list(found)
    if as_json:
        print(json.dumps([asdict(one) for one in outcomes], indent=1))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("model", "metric", "value", "with", "note"):
        table.add_column(column, overflow="fold")
    for one in outcomes:
        for name, value in one.metrics.items() or [(one.task, None)]:
            shown = "in its tables" if value is None else f"{value:.6g}"
            options = json.dumps(one.options) if one.options else ""
            made_with = "; ".join(part for part in (options, one.text) if part)
            table.add_row(one.model, name, shown, made_with, one.note)
    screen().print(table if outcomes else "nothing was evaluated yet; name an evaluation by --task")
    for convention in dict.fromkeys(f"{one.task}: {one.convention}" for one in outcomes
                                    if one.convention):  # fmt: skip
        screen().print(convention)
