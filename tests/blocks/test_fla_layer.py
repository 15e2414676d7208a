"""Layers of flash-linear-attention as blocks: options, counts and starts here, passes on a GPU."""

import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from arch_search.model import build_model, count_model
from arch_search.spec import LayerSpec, ModelSpec
from arch_search.start_check import check_start
from blocks.registry import block_class, resolve_options
from kernels.errors import BackendUnavailable

WIDTH = 64


def spec_of(kind, **given):
    options = asdict(resolve_options(kind, given, width=WIDTH))
    layer = LayerSpec(kind=kind, options=options, mlp_width=32)
    return ModelSpec(layers=(layer, layer), width=WIDTH, vocabulary=97, tie_embeddings=True)


def test_without_fla_one_line_says_what_to_install(tmp_path):
    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "__init__.py").write_text("raise ImportError('not here')\n")
    told = subprocess.run(
        [sys.executable, "-c", "from blocks.registry import block_class\n"
         "try: block_class('fla:RWKV7Attention')\nexcept ValueError as error: print(error)"],
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert told.count("\n") == 1
    assert "cannot be imported here (not here); install the extra: pip install '.[fla]'" in told


class TestWithFla:
    @pytest.fixture(autouse=True)
    def _fla(self):
        pytest.importorskip("fla.layers")

    def test_unknown_layers_and_options_are_answered_with_the_nearest(self):
        with pytest.raises(ValueError, match=r"no layer 'RWKV7'; it has: .*Did you mean 'RWKV"):
            block_class("fla:RWKV7")
        with pytest.raises(ValueError, match=r"unknown option 'num_head' .*Did you mean 'num_he"):
            resolve_options("fla:GatedLinearAttention", {"num_head": 2}, width=WIDTH)
        with pytest.raises(ValueError, match="fla:GatedLinearAttention at width 64: "):
            build_model(spec_of("fla:GatedLinearAttention", num_heads=3), seed=0)

    @pytest.mark.parametrize("kind", ["fla:GatedLinearAttention", "fla:RWKV7Attention"])
    def test_a_layer_is_counted_and_starts_by_seed_and_name(self, kind):
        spec = spec_of(kind, num_heads=2)
        counts = count_model(spec, 128)
        model, again = (build_model(spec, seed=3) for _ in range(2))
        assert counts.parameters == sum(p.numel() for p in model.parameters())
        assert counts.state_elements > 0
        check_start(model)
        for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
            assert torch.equal(one, other), name
        assert (
            not torch.equal(*(layer.mixer.layer.o_proj.weight for layer in model.layers))
            or (model.layers[0].mixer.layer.o_proj.weight == 0).all()
        )

    def test_off_a_gpu_one_line_says_that_it_needs_one(self):
        model = build_model(spec_of("fla:GatedLinearAttention", num_heads=2), seed=0)
        said = r"^block fla:GatedLinearAttention: a layer of .*; its kernels need a GPU, .* cpu$"
        with pytest.raises(BackendUnavailable, match=said):
            model(torch.zeros(1, 8, dtype=torch.int64))

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="fla's kernels need a GPU")
    @pytest.mark.parametrize("kind", ["fla:GatedLinearAttention", "fla:RWKV7Attention"])
    def test_a_layer_learns_and_carries_its_state(self, kind):
        model = build_model(spec_of(kind, num_heads=2), seed=0, device="cuda")
        tokens = torch.randint(97, (2, 129), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            whole, _ = model(tokens[:, :128])
            first, states = model(tokens[:, :64])
            second, _ = model(tokens[:, 64:128], states)
        pieces = torch.cat([first, second], dim=1)
        assert (pieces - whole).norm() < 0.03 * whole.norm()
