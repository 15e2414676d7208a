"""CPU time of each block's forward and backward pass at the size of the README's ablation.

    OMP_NUM_THREADS=1 python -m blocks.cpu_timing

Width 64, 8 sequences of 128 tokens. Blocks are taken in turn; CPU seconds of one thread, medians
with quartiles. What it printed last stands in kernels/MEASURED.md.
"""

from collections.abc import Callable

import torch

from blocks.contract import Case
from blocks.registry import BLOCKS
from kernels.cpu_timing import BATCH, LENGTH, REPEATS, in_turn, show

WIDTH = 64


def training_step(kind: str) -> Callable[[], object]:
    """Forward and backward of one block."""
    mixer = Case(kind=kind, width=WIDTH).filled(torch.float32)
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)

    def run() -> None:
        mixer(x)[0].sum().backward()

    return run


def forward(kind: str) -> Callable[[], object]:
    """Forward alone, as in evaluation."""
    mixer = Case(kind=kind, width=WIDTH).filled(torch.float32)
    x = torch.randn(BATCH, LENGTH, WIDTH)

    def run() -> None:
        with torch.no_grad():
            mixer(x)

    return run


def main() -> None:
    """Print one line of a Markdown table for each block."""
    torch.set_num_threads(1)
    both = in_turn({kind: training_step(kind) for kind in BLOCKS}, REPEATS)
    alone = in_turn({kind: forward(kind) for kind in BLOCKS}, REPEATS)
    for kind in BLOCKS:
        tokens = BATCH * LENGTH / sorted(both[kind])[REPEATS // 2] * 1e3
        print(f"| {kind} | {show(alone[kind])} | {show(both[kind])} | {tokens:,.0f} |")


if __name__ == "__main__":
    main()
