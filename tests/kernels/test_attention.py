"""Attention by blocks, masks and FlexAttention against scores that are written out."""

import pytest
import torch

from kernels import backends
from kernels.attention import causal_attention
from kernels.attention.causal import _choose, _in_blocks, _with_mask, probe_inputs
from kernels.attention.reference import attention_reference, visible
from kernels.attention.with_flex import attention_flex, causal_mask
from kernels.backends import Signature, ask_for
from kernels.errors import BackendUnavailable
from kernels.probing import disagreement


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    for name in ("_probed", "_used", "_asked"):
        monkeypatch.setattr(backends, name, {})


def inputs(T, S, *, N=4, Nk=2, K=6, V=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, T, N, K), (2, S, Nk, K), (2, S, Nk, V)]
    return [torch.randn(s, generator=generator, dtype=dtype, requires_grad=True) for s in shapes]


def documents(T, S):
    """Borders at 3 and 11 in the first sequence, at 20 in the second, places among S keys."""
    place = torch.arange(S - T, S).expand(2, T)
    borders = ((3, 11), (20,))
    first = torch.zeros(2, T, dtype=torch.int64)
    for row, starts in enumerate(borders):
        for start in starts:
            first[row] = torch.where(place[row] >= start, start, first[row])
    return first


def with_gradients(attend, given, **masks):
    y = attend(*given, **masks)
    weight = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
    return [y, *torch.autograd.grad((y * weight).sum(), given)]


def test_what_is_seen_by_hand():
    assert visible(2, 4, None, 0)[0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert visible(2, 4, None, 2)[0].int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    first = torch.tensor([[2, 2], [-5, 3]])
    seen = visible(2, 4, first, 0).int().tolist()
    assert seen == [[[0, 0, 1, 0], [0, 0, 1, 1]], [[1, 1, 1, 0], [0, 0, 0, 1]]]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("T", "S"), [(37, 37), (32, 32), (21, 25), (1, 9)])
@pytest.mark.parametrize(("window", "block"), [(0, 0), (1, 4), (4, 4), (5, 8), (7, 3)])
def test_blocks_and_masks_are_the_written_out_form(T, S, window, block, cut):
    given, first = inputs(T, S), documents(T, S) if cut else None
    expected = with_gradients(attention_reference, given, first=first, window=window)

    def masked(q, k, v, first, window):
        return _with_mask(q, k, v, first, window)

    def in_blocks(q, k, v, first, window):
        return _in_blocks(q, k, v, first, window, block)

    runs = [masked, in_blocks] if block else [masked]
    for run in runs:
        found = with_gradients(run, given, first=first, window=window)
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, atol=1e-11)


def test_a_short_window_never_makes_a_mask_of_all_pairs(monkeypatch):
    """Of 2,048 tokens with a window of 100: 0.5 million pairs instead of 4.2."""
    attend, elements = torch.nn.functional.scaled_dot_product_attention, []

    def watched(*args, attn_mask=None, **rest):
        elements.append(0 if attn_mask is None else attn_mask.numel())
        return attend(*args, attn_mask=attn_mask, **rest)

    given = inputs(2_048, 2_048, N=1, Nk=1, dtype=torch.float32)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    y = causal_attention(*given, window=100)
    assert elements == [2 * 2_048 * (128 + 100)]
    expected = attention_reference(*given, window=100)
    assert torch.allclose(y, expected, atol=1e-5)
    causal_attention(*given, window=5_000)
    causal_attention(*given)
    assert elements[1:] == [0, 0]  # a window over all is none


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_is_the_written_out_form(window, cut):
    """Its eager form, which has no backward pass on a CPU; on a GPU: test_backends_on_gpu.py."""
    given = [x.detach() for x in inputs(150, 150, dtype=torch.float32)]
    first = documents(150, 150) if cut else None
    found = attention_flex(*given, first=first, window=window)
    assert torch.allclose(found, attention_reference(*given, first=first, window=window), atol=1e-5)


def test_the_mask_that_flex_is_asked_is_the_one_that_is_written_out():
    first = documents(30, 30)
    mask = causal_mask(first, 6)
    b, q, k = torch.meshgrid(torch.arange(2), torch.arange(30), torch.arange(30), indexing="ij")
    assert torch.equal(mask(b, torch.zeros_like(b), q, k), visible(30, 30, first, 6))


def signature(**sizes):
    given = {"N": 4, "Nk": 2, "K": 8, "V": 8, "window": 0, "documents": 1} | sizes
    return Signature(
        device=torch.device("cpu"), dtype=torch.float32, sizes=tuple(given.items()),
        batch=2, length=200,
    )  # fmt: skip


def test_a_probe_finds_a_window_that_is_one_too_long():
    at = signature(window=30)

    def reference(query, **rest):
        return [attention_reference(query, **rest, window=30)]

    for window in (30, 31):

        def run(query, key, value, window=window):
            return [_in_blocks(query, key, value, None, window, 64)]

        why = disagreement(run, reference, probe_inputs(at), at)
        assert (why is None) == (window == 30)


def test_the_choice_is_recorded_and_by_name_is_refused_off_the_gpu():
    at = (torch.device("cpu"), torch.float32, (4, 2, 8, 8, 0, 1), 2, 64)
    assert _choose("auto", *at, False) == "sdpa"
    assert backends.backend_reasons() == {}  # of evaluation there is nothing to say
    assert _choose("auto", *at, True) == "sdpa"
    assert backends.backends_used() == {"attention": ["sdpa"]}
    assert backends.backend_reasons() == {
        "attention: sdpa": "flex: its compiled kernels need a GPU"
    }
    ask_for({"attention": "flex"})
    assert _choose("auto", *at, False) == "sdpa"  # evaluation, or a carried cache
    with pytest.raises(BackendUnavailable, match="attention cannot run on the backend 'flex'"):
        _choose("auto", *at, True)
    with pytest.raises(BackendUnavailable, match="need a GPU"):
        causal_attention(*inputs(9, 9))  # asked for by name: where no mask is needed, too
