"""`arch-search plan`: what an experiment would run, before anything runs."""

import json
from collections import Counter
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from arch_search.commands.screen import screen
from arch_search.commands.sweep import show_sweep_plan
from arch_search.errors import UsageError
from arch_search.expected_cost import cost_sentences, expected_cost
from arch_search.metric_names import is_yes_or_no
from arch_search.plan_spec import ArmSpec, Plan
from arch_search.storage import Root
from arch_search.wording import by_value, counted, share

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as in seeds=5.")
]


def plan(
    file: FileArgument,
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="A folder for the same as Markdown, with two figures."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Arms, runs, sizes, disk and time, and what looks confounded. Runs nothing."""
    from arch_search.planning import make_plan  # imports torch, which other commands do without

    root = Root().make()
    made = make_plan(file, root, overrides or [])
    written = [] if output is None else _write(made, root, output)
    if as_json:
        cost = asdict(expected_cost(made, root))
        print(json.dumps({**asdict(made), "estimate": cost}, indent=1))
    else:
        show(made, root, screen())
        for path in written:
            print(path)


def _write(made: Plan, root: Root, folder: Path) -> list[Path]:
    """The plan as files, by what registered itself for it: commands never import dashboards."""
    (entry,) = entry_points(group="arch_search.pictures", name="plan")
    try:
        return entry.load()(made, root, folder)
    except OSError as error:
        raise UsageError(
            f"the plan cannot be written to {folder} ({error.strerror}); choose another folder "
            "with --output"
        ) from None


def show(plan: Plan, root: Root, console: Console) -> None:
    """Print a plan for a reader."""
    if plan.sweep is not None:
        show_sweep_plan(plan, console)
        return
    console.print(Text.assemble((plan.name, "bold"), "  ", plan.question))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("arm", overflow="fold")
    table.add_column("layers", overflow="fold")
    for title in ("parameters", "state elements", "MFLOP/token"):
        table.add_column(title, justify="right")
    base = next((arm for arm in plan.arms if arm.is_baseline), plan.arms[0])
    for arm in plan.arms:
        table.add_row(
            arm.name,
            arm.layout,
            _relative(arm, base, "parameters"),
            _relative(arm, base, "state_elements"),
            f"{arm.counts['forward_flops_per_token'] / 1e6:.2f}",
        )
    console.print(table)
    for knob in dict.fromkeys(knob for arm in plan.arms for knob in arm.held):
        turned = {arm.name: arm.held[knob] for arm in plan.arms if knob in arm.held}
        console.print(f"Held by {knob}: {by_value(turned)}.", highlight=False)
    for line in describe(plan, root):
        console.print(line, highlight=False)
    show_resolution(plan, console)
    for note in plan.notes:
        console.print(f"Note: {note}.", highlight=False)
    show_findings(plan, console)


def show_resolution(plan: Plan, console: Console) -> None:
    """The smallest difference that each contrast finds, four times in five."""
    noise, effect = plan.noise, plan.primary.smallest_effect
    if is_yes_or_no(plan.primary.metric):
        from arch_search.outcomes import rate_resolution  # imports statsmodels: seconds

        console.print(rate_resolution(plan), highlight=False)
        return
    if not plan.resolution:
        return
    if noise is None:
        source = "Noise between seeds: not known before an experiment of this base has finished."
    else:
        df = f", {noise.df} degrees of freedom" if noise.df else ""
        source = f"Noise between seeds: {share(noise.share)} of the metric ({noise.source}{df})."
    console.print(f"{source} Found with 80 % power at 5 %, all of these at once:", highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("smallest true difference that is found", overflow="fold")
    table.add_column("in seed deviations", justify="right")
    if noise:
        table.add_column("difference", justify="right")
    if noise and effect:
        table.add_column(f"seeds for {share(effect)}", justify="right")
    texts = {contrast.name: contrast.text for contrast in plan.contrasts}
    for cells, names in _resolution_rows(plan, with_seeds=bool(noise and effect)).items():
        first = names[0] + (f" ({texts[names[0]]})" if names[0] in texts else "")
        more = f", and {len(names) - 1} more alike" if len(names) > 1 else ""
        table.add_row(first + more, *cells)
    console.print(table)


def _resolution_rows(plan: Plan, *, with_seeds: bool) -> dict[tuple[str, ...], list[str]]:
    """Contrasts of equal resolution share a row; declared ones each have their own."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for found in plan.resolution:
        cells = [f"{found.in_noise:.2f}"]
        if found.share is not None:
            cells.append(share(found.share))
        if with_seeds:
            cells.append("over 1,000" if found.seeds_wanted is None else str(found.seeds_wanted))
        rows.setdefault(tuple(cells), []).append(found.contrast)
    return rows


def show_findings(plan: Plan, console: Console) -> None:
    """What was found in the design: warnings, then what follows from it, then what bounds it."""
    for level, title, style in (
        (
            "warning",
            "Warnings: besides the factors, or with them, arms also differ in this",
            "yellow",
        ),
        ("residue", "Not held equal, and following from the factors", ""),
        ("limit", "Equal in all arms, and still a limit to what they can show", ""),
    ):
        found = [finding for finding in plan.findings if finding.level == level]
        if found:
            console.print(f"{title}:", style=f"bold {style}".strip(), highlight=False)
        for finding in found:
            text = f"- {finding.text[0].upper()}{finding.text[1:].removesuffix('.')}."
            console.print(text, style=style, markup=False, highlight=False)


def _relative(arm: ArmSpec, base: ArmSpec, name: str) -> str:
    value, reference = arm.counts[name], base.counts[name]
    if arm is base or not reference:
        return f"{value:,.0f}"
    return f"{value:,.0f} ({value / reference - 1:+.1%})"


def describe(plan: Plan, root: Root) -> list[str]:
    """The rest of a plan in sentences."""
    data, train = plan.arms[0].data, plan.arms[0].train
    seeds = Counter(run.seed for run in plan.runs)
    arms = f"{counted(len(plan.arms), 'arm')} x {counted(len(seeds), 'seed')}"
    lines = [
        f"{counted(len(plan.runs), 'run')}: {arms}, "
        f"{train.tokens:,} tokens each of {data.corpus} ({data.tokenizer}), "
        f"{data.batch} x {data.sequence_length} tokens a step.",
        f"Decided by {plan.primary.metric}"
        + (
            f"; a difference below {share(plan.primary.smallest_effect)} would not matter."
            if plan.primary.smallest_effect
            else "; no smallest effect that would matter is declared."
        ),
    ]
    return [*lines, *cost_sentences(plan, expected_cost(plan, root))]
