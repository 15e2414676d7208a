"""A whole M²RNN block beside Gated DeltaNet blocks at the 410M sizes, in turn, on one GPU.

    python tests/kernels/block_beside_gdn.py [--rounds 3]

Width 1024, 8 sequences of 4096 tokens, bfloat16 autocast, forward and backward with all
projections: ours with all between the projections as one operator, compiled and not, and in parts,
fla's own layer, and our Gated DeltaNet compiled.
Prints a JSON line for each and round: the clock's median, which for fla's layer is often the
host's, and the GPU's own time summed over kernels. The figures are in kernels/MEASURED.md.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from blocks.initialisation import named_generator
from blocks.registry import build, resolve_options
from kernels.backends import ask_for
from kernels.compiling import tell_compiler

SHAPE = 8, 4096, 1024
REPEATS, WARM_UP = 11, 3
Layer = Callable[[Tensor], Tensor]


def started(kind: str) -> nn.Module:
    """One block of the registry at its declared start."""
    width = SHAPE[-1]
    mixer = build(kind, resolve_options(kind, {}, width=width), width=width, depth=24)
    declared = mixer.declared_parameters()
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            generator = named_generator(0, name, parameter.shape)
            parameter.copy_(declared[name].start.sample(parameter.shape, generator))
    return mixer.cuda()


def ours(
    kind: str, *, compiled: bool, backends: dict[str, str] | None = None
) -> tuple[nn.Module, Layer]:
    """A block as a run uses it, on `backends`; its first call chooses those left out."""
    mixer, asked = started(kind), backends or {}

    def call(x: Tensor) -> Tensor:
        return mixer(x)[0]

    def on_backends(x: Tensor) -> Tensor:
        ask_for(asked)
        return called(x)

    called: Layer = call
    if not compiled:
        return mixer, on_backends
    ask_for(asked)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        call(torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16))
    tell_compiler()
    for name in mixer.uncompiled():
        setattr(mixer, name, torch.compiler.disable(getattr(mixer, name)))
    called = torch.compile(call, dynamic=False)
    return mixer, on_backends


def flas() -> tuple[nn.Module, Layer]:
    """fla's Gated DeltaNet of the paper's sizes."""
    from fla.layers import GatedDeltaNet

    layer = GatedDeltaNet(
        hidden_size=SHAPE[-1], expand_v=2, head_dim=256, num_heads=2, mode="chunk"
    ).cuda()
    return layer, lambda x: layer(x)[0]


def forward_and_backward(module: nn.Module, call: Layer) -> Callable[[], None]:
    """One pass each way, gradients of the input and of every parameter."""
    x = torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)
    leaves = [x, *module.parameters()]

    def run() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = call(x)
        torch.autograd.grad(y, leaves, gradient, allow_unused=True)

    return run


def clock_ms(run: Callable[[], None]) -> float:
    for _ in range(WARM_UP):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    for mark in marks[:-1]:
        mark.record()
        run()
    marks[-1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def gpu_ms(run: Callable[[], None]) -> float:
    """The time of its kernels, whatever lies between them."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in found.key_averages()) / 1e3


def main() -> None:
    """Time each block in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    blocks = {
        "m2rnn, compiled": ours("m2rnn", compiled=True, backends={"m2rnn_layer": "whole"}),
        "m2rnn": ours("m2rnn", compiled=False, backends={"m2rnn_layer": "whole"}),
        "m2rnn in parts, compiled": ours("m2rnn", compiled=True, backends={"m2rnn_layer": "parts"}),
        "gated_deltanet of fla": flas(),
        "gated_deltanet, compiled": ours("gated_deltanet", compiled=True),
    }
    runs = {name: forward_and_backward(*block) for name, block in blocks.items()}
    for number in range(1, rounds + 1):
        for name, run in runs.items():
            row = {"round": number, "block": name, "ms": round(clock_ms(run), 3)}
            print(json.dumps({**row, "gpu_ms": round(gpu_ms(run), 3)}), flush=True)


if __name__ == "__main__":
    main()
