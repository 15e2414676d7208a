"""Seconds from starting Python to the first optimiser step, on a cold node and on a warm one.

    python tests/throughput/second_start.py [--starts 3] [--kernels FOLDER] [--tiny]

The model is that of train_beside_fla.py: the paper's 24 Gated DeltaNet layers, 509,441,120
parameters, in bfloat16, with its layers compiled. The first start finds an empty folder of kernels,
the others what it left there; all are warm where FOLDER is that of an earlier call. Prints a JSON
line a start: seconds until all is imported, the model stands, the warm-up is over, the first step
is done. With `--tiny` it runs on a CPU, to see that it does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def start(options: argparse.Namespace) -> None:
    """In a process of its own: everything that a run does until its first step is done."""
    import torch
    from train_beside_fla import specification

    from arch_search.micro_batches import accumulate_gradients
    from arch_search.model import build_model
    from arch_search.optim import clip_gradients, make_optimiser
    from arch_search.run_settings import ResourceSpec
    from arch_search.spec import OptimiserSpec
    from arch_search.warm_up import warm_up

    def halved(size: int) -> None:
        raise torch.OutOfMemoryError(f"out of memory with more than {size} sequences at once")

    marks = {}

    def mark(name: str) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        marks[name] = round(time.time() - options.since, 1)

    device = torch.device("cpu" if options.tiny else "cuda")
    mark("imported")
    spec = specification(tiny=options.tiny)
    model = build_model(spec, seed=0, device=device)
    optimiser = make_optimiser(model, model.declared_parameters(), OptimiserSpec())
    mark("model")
    shape = (options.batch, options.length + 1)
    tokens = torch.randint(spec.vocabulary, shape, device=device)
    resources = ResourceSpec(gpus=0 if options.tiny else 1)
    precision = "float32" if options.tiny else "bfloat16"
    kept = Path(tempfile.gettempdir()) / "arch-search-second-start"
    kernels = warm_up(
        model, tokens, 0, precision, None, resources=resources, kept=kept, halved=halved
    )
    mark("warm")
    accumulate_gradients(model, tokens, 0, precision)
    clip_gradients(model, 1.0)
    optimiser.step()
    mark("first_step")
    print(json.dumps({**marks, "tuned_later": kernels.tuned_since()}), flush=True)


def main() -> None:
    """Start so many processes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--kernels", type=Path, help="keep them here for a later call")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--since", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.since:
        start(options)
        return
    with tempfile.TemporaryDirectory(prefix="arch-search-start-") as empty:
        folder = options.kernels or empty
        caches = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        caches = {name: f"{folder}/{part}" for name, part in caches.items()}
        for _ in range(options.starts):
            again = [sys.executable, __file__, *sys.argv[1:], "--since", repr(time.time())]
            subprocess.run(again, env={**os.environ, **caches}, check=True)


if __name__ == "__main__":
    main()
