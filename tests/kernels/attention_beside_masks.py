"""Time FlexAttention, blocks of a window and a mask of all pairs beside each other, in one process.

python tests/kernels/attention_beside_masks.py [--device cpu] [--small]

Forward and backward, bfloat16 on a GPU, 16 heads of 64; documents of 1,000 tokens, or a window of
1,024. Rows take turns, the first turn is not counted; medians with their range, ratios turn by turn
to the mask of all pairs. A form that runs out of memory, or is refused, says so.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.attention.causal import _in_blocks, _with_mask
from kernels.attention.with_flex import attention_flex

ROUNDS = 7
Attend = Callable[..., Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tokens and heads for a CPU")
    given = parser.parse_args()
    device = torch.device(given.device)
    shapes = [(8, 4096, 16, 64), (2, 16384, 16, 64)]
    document, window = 1000, 1024
    if given.small:
        shapes, document, window = [(2, 256, 2, 32), (1, 512, 2, 32)], 64, 64
    print(torch.__version__, torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU")
    for shape in shapes:
        for masks in ({"first": documents(shape, document, device), "window": 0},
                      {"first": None, "window": window}):  # fmt: skip
            compare(shape, masks, device)


def documents(shape: tuple[int, ...], length: int, device: torch.device) -> Tensor:
    place = torch.arange(shape[1], device=device)
    return (place - place % length).expand(shape[0], -1)


def compare(shape: tuple[int, ...], masks: dict, device: torch.device) -> None:
    window = masks["window"]
    forms: dict[str, Attend] = {"mask": lambda q, k, v: _with_mask(q, k, v, **masks)}
    if window:
        forms["blocks"] = lambda q, k, v: _in_blocks(q, k, v, **masks, block=window)
    if device.type == "cuda":
        forms["flex"] = lambda q, k, v: attention_flex(q, k, v, **masks)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    inputs = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(3)]
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    peaks: dict[str, float] = {}
    for turn in range(ROUNDS + 1):
        for name, attend in forms.items():
            try:
                spent, peaks[name] = once(attend, inputs, device)
            except Exception as error:
                peaks[name] = float("nan")
                if turn == 0:
                    print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
                continue
            if turn:
                seconds[name].append(1e3 * spent)
    print(f"{shape}, {f'window {window}' if window else 'documents'}")
    for name, taken in seconds.items():
        if taken:
            ratios = [a / b for a, b in zip(taken, seconds["mask"], strict=False)]
            print(f"  {name}: {spread(taken, '.2f')} ms, {spread(ratios, '.3f')} of the mask's, "
                  f"peak {peaks[name]:.2f} GiB, n {len(taken)}")  # fmt: skip


def once(attend: Attend, inputs: list[Tensor], device: torch.device) -> tuple[float, float]:
    """Seconds, and GiB on a GPU beyond what was there."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    begun = time.perf_counter()
    torch.autograd.grad(attend(*inputs).float().sum(), inputs)
    if on_gpu:
        torch.cuda.synchronize(device)
    spent = time.perf_counter() - begun
    peak = torch.cuda.max_memory_allocated(device) - before if on_gpu else 0
    return spent, peak / 2**30


def spread(values: list[float], form: str) -> str:
    if not values:
        return "not measured"
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


if __name__ == "__main__":
    main()
