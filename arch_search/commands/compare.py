"""`arch-search compare`: the arms against the baseline, as a table, JSON or parquet."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from arch_search.budgets import Reading
from arch_search.commands.names import NameArgument
from arch_search.commands.screen import screen
from arch_search.commands.sweep import describe_sweep, show_sweep, sweep_plan
from arch_search.compare import Comparison, comparison_table
from arch_search.compare import compare as compare_arms
from arch_search.errors import UsageError
from arch_search.findings import ArmOutcome
from arch_search.metric_names import label
from arch_search.statistics.binary import RateDifference
from arch_search.storage import Root


def compare(
    name: NameArgument,
    metric: Annotated[
        str | None, typer.Option("--metric", help="A final metric; the primary one if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Write the table to this file.")
    ] = None,
) -> None:
    """Which arms differ from the baseline, and how surely.

    Says as well what could not be resolved.
    """
    root = Root()
    if (plan := sweep_plan(root, name)) is not None:
        if metric is not None or parquet is not None:
            raise UsageError(
                f"{name} is a sweep, compared on its objectives: --metric and --parquet are for "
                f"ablations; see 'arch-search results {name} --parquet FILE' for every run"
            )
        if as_json:
            print(json.dumps(describe_sweep(root, plan), indent=1, ensure_ascii=False))
        else:
            show_sweep(root, plan, screen())
        return
    comparison = compare_arms(name, metric=metric)
    if parquet is not None:
        _write_parquet(comparison, parquet)
    if as_json:
        print(json.dumps(asdict(comparison), indent=1, ensure_ascii=False))
    elif parquet is None:
        show(comparison, screen())


def show(comparison: Comparison, console: Console) -> None:
    """Print the comparison for a reader: the declared contrasts, then every arm."""
    if comparison.contrasts:
        console.print(_contrast_table(comparison))
    if comparison.rate_contrasts:
        console.print(_rate_contrast_table(comparison))
    if comparison.rates:
        console.print(_rate_table(comparison))
    else:
        _show_arms(comparison, console)
    for reading in comparison.readings:
        console.print(_reading_table(comparison, reading))
    for sentence in (*comparison.sentences, *comparison.control.declared, *comparison.limits):
        console.print(f"• {sentence}", highlight=False)
    for warning in (*comparison.cautions, *comparison.control.warnings):
        console.print(f"! {warning}", style="yellow", highlight=False)


def _contrast_table(comparison: Comparison) -> Table:
    table = _table(
        comparison, "declared contrasts", "95 %, for all declared contrasts at once; p adjusted"
    )
    table.add_column("contrast", overflow="fold")
    for column in ("estimate", "p"):
        table.add_column(column, justify="right")
    table.add_column("finding", overflow="fold")
    for one in comparison.contrasts:
        found = f"{number(one.value, signed=True)} {interval(one.low, one.high, signed=True)}"
        table.add_row(one.name, found, p_value(one.p_simultaneous), one.verdict)
    return table


def _reading_table(comparison: Comparison, reading: Reading) -> Table:
    """The arms where the cheapest one ended, off the curves that were logged while training."""
    table = _table(
        comparison,
        f"{label(reading.metric)} at equal {reading.unit}",
        f"every arm at {reading.budget:.3g} {reading.unit} of training ({reading.source}); "
        "95 %, for all arms at once",
    )
    table.add_column("arm", overflow="fold")
    for column in ("read at", "difference to the baseline"):
        table.add_column(column, justify="right")
    for found in reading.model.differences:
        table.add_row(
            found.name,
            f"{100 * reading.shares[found.name]:.0f} % of its run",
            f"{number(found.value, signed=True)} {interval(found.low, found.high, signed=True)}",
        )
    return table


def _rate_table(comparison: Comparison) -> Table:
    table = _table(
        comparison, comparison.metric, "exact 95 %, arm by arm; a failed run counts as no"
    )
    table.add_column("arm", overflow="fold")
    for column in ("yes", "exact 95 %", "p against the baseline"):
        table.add_column(column, justify="right")
    for rate in comparison.rates:
        share = f"{100 * rate.low:.0f} to {100 * rate.high:.0f} %"
        table.add_row(rate.arm, f"{rate.successes} of {rate.n}", share, p_value(rate.p_holm))
    return table


def _rate_contrast_table(comparison: Comparison) -> Table:
    table = _table(
        comparison,
        f"declared contrasts of {comparison.metric}",
        "difference: 95 %, for it alone; p: Fisher's exact test, adjusted over declared contrasts",
    )
    table.add_column("contrast", overflow="fold")
    for column in ("yes", "against", "difference", "p"):
        table.add_column(column, justify="right")
    for one in comparison.rate_contrasts:
        table.add_row(one.name, *rate_cells(one), p_value(one.p_holm))
    return table


def _table(comparison: Comparison, title: str, caption: str) -> Table:
    return Table(
        title=f"{comparison.name}: {title}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=caption,
        caption_justify="left",
    )


def _show_arms(comparison: Comparison, console: Console) -> None:
    caption = "mean: 95 % over the arm's seeds; difference: 95 %, for all arms at once"
    table = _table(comparison, comparison.metric, caption)
    table.add_column("arm", overflow="fold")
    for column in ("n", "mean", "difference to the baseline"):
        table.add_column(column, justify="right")
    for outcome in comparison.arms:
        table.add_row(
            outcome.arm,
            count_text(outcome),
            f"{number(outcome.mean)} {interval(outcome.mean_low, outcome.mean_high)}",
            f"{number(outcome.difference, signed=True)} "
            f"{interval(outcome.low, outcome.high, signed=True)}",
        )
    console.print(table)
    for outcome in comparison.arms[1:]:
        console.print(Text.assemble(outcome.arm, ": ", (outcome.verdict, "bold")))
    console.print()


def count_text(outcome: ArmOutcome) -> str:
    """'5', or '4 of 5' where runs failed or are not finished."""
    whole = outcome.n == outcome.planned
    return str(outcome.n) if whole else f"{outcome.n} of {outcome.planned}"


def number(value: float | None, *, signed: bool = False) -> str:
    """Four decimals, a true minus sign, and a dash for what is not known."""
    if value is None:
        return "–"
    return f"{value:+.4f}".replace("-", "−") if signed else f"{value:.4f}".replace("-", "−")


def interval(low: float | None, high: float | None, *, signed: bool = False) -> str:
    """'[low, high]', or a dash."""
    if low is None or high is None:
        return "–"
    return f"[{number(low, signed=signed)}, {number(high, signed=signed)}]"


def rate_cells(one: RateDifference) -> tuple[str, str, str]:
    """'9 of 10', '0 of 9', '+0.9 [+0.52, +0.97]'."""
    found = f"{number(one.value, signed=True)} {interval(one.low, one.high, signed=True)}"
    return "{} of {}".format(*one.of), "{} of {}".format(*one.minus), found


def p_value(p: float | None) -> str:
    """Three decimals, or a bound."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _write_parquet(comparison: Comparison, path: Path) -> None:
    try:
        comparison_table(comparison).to_parquet(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
