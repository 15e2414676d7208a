"""Scores and generation with carried states: equal to plain passes? flat in time? As JSON lines.

python tests/evaluation/measure_generation.py [cpu|cuda] [kind …]
"""

import json
import sys
import time
from dataclasses import asdict

import torch

from arch_search.generation import Inference, generate
from arch_search.model import LanguageModel, build_model
from arch_search.scoring import score_continuations
from arch_search.spec import LayerSpec, ModelSpec
from blocks.registry import resolve_options

WIDTH, LAYERS = 512, 8
PROMPTS = (512, 2048, 8192, 16384)
NEW = 32


def model_of(kind: str, device: str) -> LanguageModel:
    """Not trained; weights enlarged threefold, so that predictions are sure."""
    options = asdict(resolve_options(kind, {}, width=WIDTH))
    layer = LayerSpec(kind=kind, options=options, mlp_width=2 * WIDTH)
    spec = ModelSpec(layers=(layer,) * LAYERS, width=WIDTH, vocabulary=257, tie_embeddings=False)
    model = build_model(spec, seed=1, device=device).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(6 if name == "head.weight" else 3)
    return model


def plain_score(model: LanguageModel, context: list[int], continuation: list[int], device: str):
    tokens = torch.tensor([[*context, *continuation]], device=device)
    with torch.inference_mode():
        shares = torch.log_softmax(model(tokens[:, :-1])[0][0].float(), dim=-1)
    shares = shares[len(context) - 1 :]
    return sum(shares[i, token].item() for i, token in enumerate(continuation))


def measure(kind: str, device: str) -> dict[str, object]:
    model, draw = model_of(kind, device), torch.Generator().manual_seed(0)
    contexts = [torch.randint(256, (n,), generator=draw).tolist() for n in (17, 40, 61, 128)]
    pairs = [(c, torch.randint(256, (n,), generator=draw).tolist())
             for c in contexts for n in (1, 5, 9)]  # fmt: skip
    expected = [plain_score(model, *pair, device) for pair in pairs]
    found: dict[str, object] = {"kind": kind, "device": device}
    where = torch.device(device)
    for batch in (0, 1):
        inference = Inference(model=model, device=where, batch=batch)
        scores = [s.nats for s in score_continuations(inference, pairs)]
        off = max(abs(a - b) / abs(b) for a, b in zip(scores, expected, strict=True))
        found[f"difference_batch_{batch or 'all'}"] = off
        again = [s.nats for s in score_continuations(inference, pairs)]
        found[f"equal_twice_batch_{batch or 'all'}"] = scores == again
    for length in PROMPTS if device == "cuda" else PROMPTS[:1]:
        prompt = torch.randint(256, (length,), generator=draw).tolist()
        found[f"ms_a_token_after_{length}"] = milliseconds(inference, prompt)
    return found


def milliseconds(inference: Inference, prompt: list[int]) -> float:
    """The median of three: the time of many new tokens less that of one, which reads the prompt."""
    generate(inference, [prompt], tokens=4)
    times = sorted(seconds(inference, prompt, NEW + 1) - seconds(inference, prompt, 1)
                   for _ in range(3))  # fmt: skip
    return 1e3 * times[1] / NEW


def seconds(inference: Inference, prompt: list[int], tokens: int) -> float:
    """Reading the tokens off the device ends the clock; no token ends a text early."""
    started = time.perf_counter()
    generate(inference, [prompt], tokens=tokens)
    return time.perf_counter() - started


if __name__ == "__main__":
    device, *kinds = sys.argv[1:] or ["cpu"]
    for kind in kinds or ["gru", "m2rnn", "gated_deltanet", "mamba2", "attention"]:
        print(json.dumps(measure(kind, device)), flush=True)
