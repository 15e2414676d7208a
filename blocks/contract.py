"""What every block must hold to, as checks that anyone's block can be put through.

`tests/blocks/test_contract.py` runs them over the registry, pairwise over options. Each check
raises AssertionError and says what was found.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from blocks.base import SequenceMixer, State
from blocks.initialisation import named_generator
from blocks.measured_flops import measure_flops
from blocks.registry import block_class, build, resolve_options

LENGTH = 37  # no multiple of a chunk or of the distance between kept states
BATCH = 2
CUTS = (0, 1, 8, 9, 34, LENGTH)  # pieces of several lengths, 1 among them
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A block with some options, at a small width."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    width: int = 12
    depth: int = 3

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.options.items()) or "defaults"

    def build(self) -> SequenceMixer:
        """The block, every parameter NaN."""
        options = resolve_options(self.kind, self.options, width=self.width)
        mixer = build(self.kind, options, width=self.width, depth=self.depth)
        for parameter in mixer.parameters():
            torch.nn.init.constant_(parameter, math.nan)
        return mixer

    def filled(self, dtype: torch.dtype = torch.float64, *, seed: int = 0) -> SequenceMixer:
        """The block at its declared start, then moved off it so that every path carries weight."""
        mixer = self.build()
        declared = mixer.declared_parameters()
        with torch.no_grad():
            for name, parameter in mixer.named_parameters():
                generator = named_generator(seed, name, parameter.shape)
                start = declared[name].start.sample(parameter.shape, generator)
                moved = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(start + 0.3 * moved)
        return mixer.to(dtype)

    def inputs(self, dtype: torch.dtype = torch.float64, *, seed: int = 1) -> Tensor:
        """(B, T, D)."""
        generator = torch.Generator().manual_seed(seed)
        shape = (BATCH, LENGTH, self.width)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def run_pieces(
    mixer: SequenceMixer, x: Tensor, reset: Tensor | None = None
) -> tuple[Tensor, State]:
    """The output and last state when x is fed in pieces with the state carried."""
    outputs, state = [], None
    for start, end in itertools.pairwise(CUTS):
        piece = None if reset is None else reset[:, start:end]
        y, state = mixer(x[:, start:end], state, reset=piece)
        outputs.append(y)
    assert state is not None
    return torch.cat(outputs, dim=1), state


def run_steps(mixer: SequenceMixer, x: Tensor) -> tuple[Tensor, State]:
    """The output and last state when x is fed token by token."""
    outputs, state = [], mixer.initial_state(x.shape[0], dtype=x.dtype)
    for t in range(x.shape[1]):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


def assert_near(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Largest difference at most `tolerance` times the largest value (at least 1)."""
    assert found.shape == expected.shape, f"{what}: {found.shape} is not {expected.shape}"
    if expected.numel():
        error = (found - expected).abs().max().item()
        scale = max(1.0, expected.abs().max().item())
        assert error <= tolerance * scale, f"{what}: off by {error:.3g} at a scale of {scale:.3g}"


def check_options(case: Case) -> None:
    """Options are complete once resolved, and survive JSON."""
    options = resolve_options(case.kind, case.options, width=case.width)
    plain = json.loads(json.dumps(asdict(options)))
    again = resolve_options(case.kind, plain, width=case.width)
    assert again == options, f"{plain} resolves to {again}, not to {options}"
    assert block_class(case.kind).summary, "a block needs a summary"


def check_start(case: Case) -> None:
    """Every parameter is declared, filled, and has the mean and deviation that it declares."""
    mixer = case.build()
    declared = mixer.declared_parameters()
    there = {name for name, _ in mixer.named_parameters()}
    assert there == declared.keys(), f"declared and present differ: {there ^ declared.keys()}"
    for name, parameter in mixer.named_parameters():
        start = declared[name].start
        samples = torch.stack(
            [start.sample(parameter.shape, named_generator(s, name, parameter.shape))
             for s in range(max(1, 4000 // parameter.numel()))]
        ).double()  # fmt: skip
        assert samples.isfinite().all(), f"{name} starts with values that are not finite"
        mean, std = start.moments(parameter.shape)
        margin = 6 * std / math.sqrt(samples.numel()) + 1e-6
        found = samples.mean().item(), samples.std(correction=0).item()
        assert abs(found[0] - mean) <= margin, f"{name}: mean {found[0]}, declared {mean}"
        assert abs(found[1] - std) <= 3 * margin + 0.05 * std, f"{name}: std {found[1]} not {std}"


def check_counts(case: Case) -> None:
    """Counted parameters and state equal those that are there; FLOPs lie where they must.

    Every product of matrices that ran is counted, and nothing beyond what ran.
    """
    mixer, x = case.filled(), case.inputs()
    cost = mixer.cost(LENGTH)
    parameters = sum(parameter.numel() for parameter in mixer.parameters())
    assert cost.parameters == parameters, f"counts {cost.parameters} parameters of {parameters}"
    _, state = mixer(x)
    elements = sum(part.numel() for part in state.values() if part.is_floating_point()) / BATCH
    counted = cost.state_elements + cost.convolution_elements
    counted += cost.state_elements_per_token * LENGTH
    assert counted == elements, f"counts {counted} state elements of {elements}"
    check_flops(mixer, x)


def check_flops(mixer: SequenceMixer, x: Tensor) -> None:
    """products <= counted <= products + pointwise, for the forward pass of x (B, T, D)."""
    measured = measure_flops(mixer, x)
    counted = mixer.cost(x.shape[1]).forward_flops_per_token * x.shape[0] * x.shape[1]
    least, most = measured.products, measured.products + measured.pointwise
    assert least <= counted * (1 + 1e-9), f"counts {counted:.0f} FLOPs; products ran: {least}"
    assert counted <= most, f"counts {counted:.0f} FLOPs; ran: {most} with pointwise ones"


def check_causal(case: Case) -> None:
    """No output depends on a later input, and every output on its own."""
    mixer, x = case.filled(), case.inputs()
    y, _ = mixer(x)
    for cut in (1, 20, LENGTH - 1):
        changed = x.clone()
        changed[:, cut:] += 10 * torch.randn(changed[:, cut:].shape, dtype=x.dtype)
        z, _ = mixer(changed)
        assert_near(z[:, :cut], y[:, :cut], 1e-9, f"outputs before {cut} when later inputs change")
        assert (z[:, cut] - y[:, cut]).abs().max() > 1e-6, f"output {cut} ignores its own input"


def check_pieces(case: Case, dtype: torch.dtype) -> None:
    """The whole sequence, pieces with carried state, and single steps agree, states included."""
    mixer, x = case.filled(dtype), case.inputs(dtype)
    with torch.no_grad():
        whole, last = mixer(x)
        for how, (y, state) in (
            ("pieces", run_pieces(mixer, x)),
            ("steps", run_steps(mixer, x)),
        ):
            assert_near(y, whole, TOLERANCE[dtype], f"outputs in {how}")
            assert state.keys() == last.keys(), f"state in {how} has {state.keys()}"
            for name in last:
                assert_near(state[name], last[name], TOLERANCE[dtype], f"state {name} in {how}")


def check_gradients(case: Case) -> None:
    """Gradients are finite, reach every parameter, and equal those of single steps."""
    mixer, x = case.filled(), case.inputs().requires_grad_()
    leaves = [x, *mixer.parameters()]
    names = ["input", *(name for name, _ in mixer.named_parameters())]
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    whole = torch.autograd.grad((mixer(x)[0] * weight).sum(), leaves, allow_unused=True)
    steps = torch.autograd.grad((run_steps(mixer, x)[0] * weight).sum(), leaves, allow_unused=True)
    for name, gradient, expected in zip(names, whole, steps, strict=True):
        assert gradient is not None, f"no gradient reaches {name}"
        assert expected is not None, f"no gradient reaches {name} in steps"
        assert gradient.isfinite().all(), f"the gradient of {name} is not finite"
        assert gradient.abs().max() > 0, f"the gradient of {name} is zero"
        assert_near(gradient, expected, TOLERANCE[torch.float64], f"gradient of {name}")


def check_reset(case: Case) -> None:
    """Packed documents give what each gives alone, whole and in pieces, and the state of the last.

    The second sequence has its border elsewhere, and one of a single token.
    """
    mixer, x = case.filled(), case.inputs()
    reset = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    borders = ((0, 13), (5, 20, 21))
    for row, starts in enumerate(borders):
        reset[row, list(starts)] = True
    with torch.no_grad():
        packed, last = mixer(x, reset=reset)
        pieces, state = run_pieces(mixer, x, reset)
        assert_near(pieces, packed, 1e-10, "packed documents in pieces")
        for row, starts in enumerate(borders):
            ends = dict.fromkeys((0, *starts, LENGTH))
            alone_state = None
            for start, end in itertools.pairwise(ends):
                alone, alone_state = mixer(x[row : row + 1, start:end])
                assert_near(packed[row, start:end], alone[0], 1e-10, f"document {start}:{end}")
            following = x[row : row + 1] + 1  # the states are compared by what they lead to
            expected, _ = mixer(following, alone_state)
            for after in (last, state):
                found, _ = mixer(following, {k: v[row : row + 1] for k, v in after.items()})
                assert_near(found, expected, 1e-10, f"what follows document {starts[-1]}:")


def check_batch(case: Case) -> None:
    """A sequence's output does not depend on the others in its batch."""
    mixer, x = case.filled(), case.inputs()
    with torch.no_grad():
        assert_near(mixer(x[:1])[0], mixer(x)[0][:1], 1e-10, "a sequence alone")


def check_autocast(case: Case) -> None:
    """Under bfloat16 autocast, outputs and gradients are finite and near those in float32."""
    mixer, x = case.filled(torch.float32), case.inputs(torch.float32)
    expected, _ = mixer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = mixer(x)
    y.float().square().sum().backward()
    error = (y.float() - expected).norm() / expected.norm()
    assert error < 0.1, f"under autocast the output is off by {error:.2g} of its norm"
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, f"no gradient reaches {name} under autocast"
        assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"


def clauses() -> Iterator[tuple[str, Callable[[Case], None]]]:
    """Every check by name."""
    yield "options", check_options
    yield "start", check_start
    yield "counts", check_counts
    yield "causal", check_causal
    yield "pieces in float32", lambda case: check_pieces(case, torch.float32)
    yield "pieces in float64", lambda case: check_pieces(case, torch.float64)
    yield "gradients", check_gradients
    yield "reset", check_reset
    yield "batch", check_batch
    yield "autocast", check_autocast
