"""`arch-search bench`: kernels against float64, the clock and the floors; arms; packing."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from arch_search.commands.packing import packing
from arch_search.commands.throughput import throughput
from arch_search.errors import UsageError

bench = typer.Typer(no_args_is_help=True, help="Time kernels, and whole arms.")
bench.command()(throughput)
bench.command()(packing)


@bench.command()
def kernels(
    repeats: Annotated[int, typer.Option("--repeats", min=3, help="Timings a row.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Forward, forward and backward, extra memory, error and floor of each scan on this GPU."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("bench kernels times GPU kernels, and torch sees no CUDA device here")
    from kernels.bench import WrongKernel, environment, markdown, rows  # needs triton

    try:
        table = rows(repeats)
    except WrongKernel as error:
        print(f"nothing was timed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps({**environment(), "rows": [asdict(row) for row in table]}, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in environment().items()))
        print(markdown(table))
