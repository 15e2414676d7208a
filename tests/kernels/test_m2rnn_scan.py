"""The M²RNN scan: the loop against finite differences, the torch backend against the loop."""

import itertools

import pytest
import torch
from allpairspy import AllPairs

from kernels.errors import BackendUnavailable
from kernels.m2rnn import m2rnn_scan, torch_scan

NONLINEARITIES = ["tanh", "identity", "softsign", "relu", "hard_tanh", "norm_clip"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def make_inputs(
    B=2, T=37, N=4, K=5, V=3, *, weight="dense", shared=True, seed=0, dtype=torch.float64
):
    """query, key, value, forget, weight, state, all needing gradients; one q and k if shared."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return x.to(dtype).requires_grad_()

    groups = 1 if shared else N
    forget = torch.rand(B, T, N, generator=generator, dtype=torch.float64).to(dtype)
    weights = {"dense": (N, V, V), "diagonal": (N, V), "identity": None}
    shape = weights[weight]
    return [
        normal(B, T, groups, K),
        normal(B, T, groups, K, scale=0.5),
        normal(B, T, N, V),
        forget.requires_grad_(),
        None if shape is None else normal(*shape, scale=0.4),
        normal(B, N, K, V, scale=0.3),
    ]


def results(inputs, backend, seed=1, **modes):
    """Output, last state and the gradient of every input for a random upstream gradient."""
    output, last = m2rnn_scan(*inputs, backend=backend, **modes)
    generator = torch.Generator().manual_seed(seed)
    upstream = [
        torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
        for x in (output, last)
    ]
    leaves = [x for x in (*inputs, modes.get("gate_weight")) if x is not None]
    return output, last, *torch.autograd.grad([output, last], leaves, upstream)


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        scale = 1 + b.abs().max().item()
        assert (a - b).abs().max().item() <= tolerance * scale


WRITES, CLIPS = ["outer", "delta"], ["none", "carry", "sum"]
ELSE = [["dense", "diagonal", "identity"], [False, True], [False, True], [True, False], [1, 16, 37]]
PAIRS = [tuple(case) for case in AllPairs([NONLINEARITIES, WRITES, CLIPS, *ELSE])]
# every nonlinearity with every write and clip, and every pair of any two options
CASES = PAIRS + [
    (*case, *rest)
    for case, rest in zip(
        itertools.product(NONLINEARITIES, WRITES, CLIPS),
        itertools.cycle(AllPairs(ELSE)),
        strict=False,
    )
]


@pytest.mark.parametrize(
    "nonlinearity, write, clip, weight, state_gate, resets, shared, length", CASES
)
@pytest.mark.parametrize("kept_bytes", [0, 2**26], ids=["rebuilt", "kept"])
def test_hand_written_backward_equals_autograd_of_the_loop(
    nonlinearity, write, clip, weight, state_gate, resets, shared, length, kept_bytes, monkeypatch
):
    monkeypatch.setattr(torch_scan, "KEPT_BYTES", kept_bytes)
    inputs = make_inputs(T=length, weight=weight, shared=shared)
    generator = torch.Generator().manual_seed(2)
    modes = {"nonlinearity": nonlinearity, "write": write, "clip": clip}
    if state_gate:
        u = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        modes["gate_weight"] = u.requires_grad_()
    if resets:
        modes["reset"] = torch.rand(2, length, generator=generator) < 0.15
    assert_close(results(inputs, "torch", **modes), results(inputs, "loop", **modes), 1e-10)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("write", ["outer", "delta"])
@pytest.mark.parametrize("backend", ["loop", "torch"])
def test_gradients_are_those_of_finite_differences(nonlinearity, write, backend):
    inputs = make_inputs(B=1, T=4, N=2, K=2, V=2, seed=3)
    u = torch.full((2, 2), 0.3, dtype=torch.float64, requires_grad=True)

    def scan(*leaves):
        return m2rnn_scan(
            *leaves[:-1], gate_weight=leaves[-1], nonlinearity=nonlinearity, write=write,
            backend=backend,
        )  # fmt: skip

    assert torch.autograd.gradcheck(scan, (*inputs, u))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("backend", ["loop", "torch"])
def test_pieces_with_carried_state_equal_the_whole(dtype, backend):
    q, k, v, f, w, h = make_inputs(T=45, dtype=dtype)
    whole, last = m2rnn_scan(q, k, v, f, w, h, backend=backend)
    outputs, state = [], h
    for start, end in itertools.pairwise([0, 7, 8, 24, 45]):
        s = slice(start, end)
        y, state = m2rnn_scan(q[:, s], k[:, s], v[:, s], f[:, s], w, state, backend=backend)
        outputs.append(y)
    assert_close([torch.cat(outputs, 1), state], [whole, last], TOLERANCE[dtype])


def test_a_reset_hides_everything_before_it():
    q, k, v, f, w, h = make_inputs(T=20)
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[0, 0] = reset[:, 9] = True
    packed, last = m2rnn_scan(q, k, v, f, w, h, reset=reset)
    alone, last_alone = m2rnn_scan(q[:, 9:], k[:, 9:], v[:, 9:], f[:, 9:], w)
    assert_close([packed[:, 9:], last], [alone, last_alone], 1e-12)
    (gradient,) = torch.autograd.grad(packed[:, 9:].sum() + last.sum(), v)
    assert gradient[:, :9].abs().max() == 0


@pytest.mark.parametrize("clip", ["carry", "sum"])
def test_clipping_bounds_what_is_carried(clip):
    """With a gain above 1 the carried gradient explodes unless it is clipped."""
    q, k, v, f, w, h = make_inputs(B=1, T=60, N=1, K=2, V=2, seed=5)
    w = (3 * torch.eye(2, dtype=torch.float64))[None].requires_grad_()
    free, clipped = (
        torch.autograd.grad(
            m2rnn_scan(q, k, v, f * 0.1, w, h, nonlinearity="identity", clip=how)[1].sum(), h
        )[0].abs().max()
        for how in ("none", clip)
    )  # fmt: skip
    assert free > 1e10
    assert clipped < 10


def test_head_n_reads_group_n_over_the_group_size():
    q, k, v, f, w, h = make_inputs(N=6, shared=False)
    grouped = [q[:, :, ::3], k[:, :, ::2], v, f[:, :, :1], w[::2], h]
    spread = [
        q[:, :, [0, 0, 0, 3, 3, 3]], k[:, :, [0, 0, 2, 2, 4, 4]], v, f[:, :, [0] * 6],
        w[[0, 0, 2, 2, 4, 4]], h,
    ]  # fmt: skip
    assert_close(m2rnn_scan(*grouped), m2rnn_scan(*spread, backend="loop"), 1e-12)


def test_output_has_the_values_dtype_and_the_state_stays_float32():
    inputs = make_inputs(dtype=torch.float32)[:5]
    output, last = m2rnn_scan(*[x.bfloat16() for x in inputs])
    assert (output.dtype, last.dtype) == (torch.bfloat16, torch.float32)


def test_the_state_never_leaves_the_unit_cube():
    """|H| <= 1 for tanh whatever W, v and f: H_t lies between H_{t-1} and Z_t."""
    q, k, v, f, w, _ = make_inputs(T=200)
    _, last = m2rnn_scan(q, k, 50 * v, f, 20 * w)
    assert last.abs().max() <= 1
    assert last.abs().max() > 0.9


def test_norm_clip_keeps_every_row_of_the_state_to_norm_one():
    q, k, v, f, w, _ = make_inputs(T=200)
    _, last = m2rnn_scan(q, k, 50 * v, f, 20 * w, nonlinearity="norm_clip")
    norms = last.norm(dim=-1)
    assert norms.max() <= 1 + 1e-12
    assert norms.max() > 0.9


@pytest.mark.parametrize(
    "change, message",
    [
        ({"key": (2, 9, 1, 4)}, r"key has shape \(2, 9, 1, 4\); expected \(2, 9, 1, 5\)"),
        ({"value": (2, 9, 3, 3)}, "value has 3 heads, which does not divide the largest, 4"),
        ({"forget": (2, 8, 4)}, r"forget has shape \(2, 8, 4\); expected \(2, 9, 4\)"),
        ({"weight": (4, 3, 2)}, r"weight has shape \(4, 3, 2\); expected \(4, 3, 3\)"),
        ({"state": (2, 4, 3, 5)}, r"state has shape \(2, 4, 3, 5\); expected \(2, 4, 5, 3\)"),
        ({"query": (2, 9, 5)}, r"query has shape \(2, 9, 5\); expected \(B, T, Nq, K\)"),
    ],
)
def test_a_wrong_shape_is_named(change, message):
    names = ["query", "key", "value", "forget", "weight", "state"]
    inputs = dict(zip(names, make_inputs(T=9), strict=True))
    inputs |= {name: torch.zeros(shape) for name, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        m2rnn_scan(**inputs)


def test_a_wrong_name_is_answered_with_those_allowed():
    with pytest.raises(ValueError, match=r"nonlinearity is 'tahn'; expected one of tanh, identity"):
        m2rnn_scan(*make_inputs(T=3), nonlinearity="tahn")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the backend can run here")
def test_a_backend_asked_for_by_name_never_falls_back(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="triton"):
        m2rnn_scan(*make_inputs(T=3), backend="triton")
