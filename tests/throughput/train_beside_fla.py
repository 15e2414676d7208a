"""Trains our Gated DeltaNet and fla's GatedDeltaNetForCausalLM of one size in turn, on one GPU.

    python tests/throughput/train_beside_fla.py [--shapes 8x4096,2x16384] [--rounds 3] [--curve 50]

Both are the paper's 24 layers of width 1024 with 509,441,120 parameters, bfloat16 autocast over
float32 parameters, clipped gradients, fused AdamW; fla's begins with a copy of our weights. Ours is
compiled, on the kernels that `resources.backends` would choose. Prints JSON lines: speed by round,
peak memory, the ratio by round, and how far two losses over the same tokens part. The figures are
in kernels/MEASURED.md. With `--tiny` ours alone runs on a CPU, to see that the script does.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from arch_search.compiling import compile_layers
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import LanguageModel, build_model
from arch_search.optim import clip_gradients
from arch_search.spec import LayerSpec, ModelSpec
from arch_search.warm_up import settle_backends

STEPS = 6  # of each model in one round
Step = Callable[[Tensor], Tensor]


def specification(*, tiny: bool) -> ModelSpec:
    """The paper's pure Gated DeltaNet with untied embeddings."""
    key = 16 if tiny else 256
    options = {
        "key_heads": 2, "value_heads": 2, "key_dim": key, "value_dim": 2 * key, "convolution": 4,
        "output_gate": True, "order": "norm_gate", "negative_eigenvalues": False,
    }  # fmt: skip
    layer = LayerSpec(kind="gated_deltanet", options=options, mlp_width=96 if tiny else 2752)
    return ModelSpec(
        layers=(layer,) * (2 if tiny else 24),
        width=64 if tiny else 1024,
        vocabulary=1000 if tiny else 100_352,
        tie_embeddings=False,
    )


def tokens(shape: tuple[int, int], step: int, vocabulary: int, device: torch.device) -> Tensor:
    """(batch, 2, length): inputs and targets; frequencies about 1 / rank, and something to learn.

    The last target is none, since fla's model shifts its labels itself.
    """
    generator = torch.Generator().manual_seed(step)
    batch, length = shape
    drawn = torch.rand(batch, length + 1, generator=generator)
    rank = (drawn.mul(7.5).exp() - 1).long()
    follows = torch.rand(batch, length + 1, generator=generator) < 0.3
    text = torch.where(follows, rank.roll(1, 1) + 1, rank) % vocabulary
    targets = text[:, 1:].clone()
    targets[:, -1] = -100
    return torch.stack([text[:, :-1], targets], dim=1).to(device)


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )


def training_step(model: nn.Module, gradients: Step) -> Step:
    """A whole step: gradients as given, clipping, AdamW. Returns the loss, left on the device."""
    adam = optimiser(model)

    def step(batch: Tensor) -> Tensor:
        loss = gradients(batch)
        clip_gradients(model, 1.0)  # pyright: ignore[reportArgumentType]
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss

    return step


def our_step(model: LanguageModel, example: Tensor) -> Step:
    """Ours, as a run trains it on a GPU."""
    settle_backends(model, example, "bfloat16")
    if example.is_cuda:
        compile_layers(model)
    return training_step(model, lambda batch: accumulate_gradients(model, batch, 0, "bfloat16"))


def flas_step(ours: LanguageModel, spec: ModelSpec, device: torch.device) -> tuple[nn.Module, Step]:
    """fla's model with our weights, and its own fused loss."""
    from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM

    config = GatedDeltaNetConfig(
        hidden_size=spec.width, num_heads=2, head_dim=256, expand_v=2, norm_eps=spec.norm_eps,
        num_hidden_layers=len(spec.layers), intermediate_size=spec.layers[0].mlp_width,
        vocab_size=spec.vocabulary, tie_word_embeddings=False, use_cache=False,
        fuse_cross_entropy=False, fuse_linear_cross_entropy=True,
    )  # fmt: skip
    model = GatedDeltaNetForCausalLM(config).to(device).train()
    copy_weights(ours, model)

    def gradients(batch: Tensor) -> Tensor:
        text = batch[:, 0].contiguous()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=text, labels=text).loss
        loss.backward()
        return loss.detach()

    return model, training_step(model, gradients)


@torch.no_grad()
def copy_weights(ours: Any, theirs: Any) -> None:
    """Put our weights into fla's model, which keeps the projections apart."""
    theirs.model.embeddings.weight.copy_(ours.embedding.weight)
    theirs.lm_head.weight.copy_(ours.head.weight)
    theirs.model.norm.weight.copy_(ours.norm.weight)
    for layer, other in zip(ours.layers, theirs.model.layers, strict=True):
        mine, his = layer.mixer, other.attn
        projections = (his.q_proj, his.k_proj, his.v_proj)
        convolutions = (his.q_conv1d, his.k_conv1d, his.v_conv1d)
        for to, part in zip(projections, mine.input.weight.split(mine.mixed), strict=True):
            to.weight.copy_(part)
        for to, part in zip(convolutions, mine.convolution.weight.split(mine.mixed), strict=True):
            to.weight.copy_(part[:, None])
        gates = mine.gates.weight
        parts = gates[:2], gates[2:4], gates[4:]  # of two heads
        for to, part in zip((his.a_proj, his.b_proj, his.g_proj), parts, strict=True):
            to.weight.copy_(part)
        his.A_log.copy_(mine.decay.A_log)
        his.dt_bias.copy_(mine.decay.dt_bias)
        his.o_norm.weight.copy_(mine.norm.weight)
        his.o_proj.weight.copy_(mine.output.weight)
        other.attn_norm.weight.copy_(layer.mixer_norm.weight)
        other.mlp_norm.weight.copy_(layer.mlp_norm.weight)
        gate, up = layer.mlp.input.weight.chunk(2)
        other.mlp.gate_proj.weight.copy_(gate)
        other.mlp.up_proj.weight.copy_(up)
        other.mlp.down_proj.weight.copy_(layer.mlp.output.weight)


def timed(step: Step, batches: list[Tensor]) -> float:
    """Median milliseconds of a step; the first, which lets the host run ahead, is left out."""
    step(batches[0])
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    marks[0].record()
    for at in range(STEPS):
        step(batches[at % len(batches)])
        marks[at + 1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def peak_gib(model: nn.Module, step: Step, batch: Tensor) -> float:
    """Memory of one step with this model's parameters and moments, and nothing of the other's."""
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(batch)
    torch.cuda.synchronize()
    own = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    return (torch.cuda.max_memory_allocated() - held + own) / 2**30


def beside(spec: ModelSpec, shape: tuple[int, int], *, rounds: int, curve: int) -> None:
    """Print one shape's lines."""
    device = torch.device("cuda")
    batches = [tokens(shape, at, spec.vocabulary, device) for at in range(2)]
    ours = build_model(spec, seed=0, device=device)
    theirs, step_theirs = flas_step(ours, spec, device)
    models: dict[str, nn.Module] = {"ours": ours, "fla": theirs}
    steps = {"ours": our_step(ours, batches[0]), "fla": step_theirs}
    for at in range(curve):
        losses = {n: float(s(tokens(shape, 100 + at, spec.vocabulary, device)))
                  for n, s in steps.items()}  # fmt: skip
        if at in (0, curve - 1):
            print(json.dumps({"shape": shape, "step": at + 1, "loss": losses}), flush=True)
    for _ in range(rounds):
        ms = {name: timed(step, batches) for name, step in steps.items()}
        speed = {name: round(shape[0] * shape[1] / value * 1e3) for name, value in ms.items()}
        row = {"tokens_per_second": speed, "ratio": round(ms["fla"] / ms["ours"], 3)}
        print(json.dumps({"shape": shape, **row}), flush=True)
    memory = {n: round(peak_gib(models[n], steps[n], batches[0]), 1) for n in models}
    print(json.dumps({"shape": shape, "peak_gib": memory}), flush=True)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="8x4096")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--curve", type=int, default=50)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    spec = specification(tiny=options.tiny)
    if options.tiny:
        cpu = torch.device("cpu")
        model = build_model(spec, seed=0, device=cpu)
        step = our_step(model, tokens((2, 64), 0, spec.vocabulary, cpu))
        losses = [float(step(tokens((2, 64), at, spec.vocabulary, cpu))) for at in range(20)]
        print(json.dumps({"first": losses[0], "last": losses[-1]}))
        return
    for text in options.shapes.split(","):
        batch, length = map(int, text.split("x"))
        beside(spec, (batch, length), rounds=options.rounds, curve=options.curve)


if __name__ == "__main__":
    main()
