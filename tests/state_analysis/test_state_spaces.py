"""A small Mamba-2 model with the published keys, against mamba-ssm's own code."""

import importlib.util
import json
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from arch_search.cli import make_app
from arch_search.errors import UsageError
from arch_search.state_spaces import read_state_spaces
from arch_search.storage import Root
from arch_search.stored_model import find_stored_model

CONFIG = {
    "d_model": 16, "d_intermediate": 0, "n_layer": 2, "vocab_size": 29, "rms_norm": True,
    "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 16,
    "tie_embeddings": True, "attn_layer_idx": [], "attn_cfg": {},
    "ssm_cfg": {"layer": "Mamba2", "headdim": 8, "d_state": 16},
}  # fmt: skip


def published_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under the keys of state-spaces' checkpoints."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    weights = {"backbone.embedding.weight": draw(32, 16), "backbone.norm_f.weight": 1 + draw(16)}
    weights["lm_head.weight"] = weights["backbone.embedding.weight"]
    for i in range(2):
        name = f"backbone.layers.{i}."
        weights |= {
            f"{name}norm.weight": 1 + draw(16),
            f"{name}mixer.dt_bias": draw(4) - 1,
            f"{name}mixer.A_log": draw(4),
            f"{name}mixer.D": 1 + draw(4),
            f"{name}mixer.in_proj.weight": draw(2 * 32 + 2 * 16 + 4, 16),
            f"{name}mixer.conv1d.weight": draw(64, 1, 4),
            f"{name}mixer.conv1d.bias": draw(64),
            f"{name}mixer.norm.weight": 1 + draw(32),
            f"{name}mixer.out_proj.weight": draw(16, 32),
        }
    return weights


@pytest.fixture
def folder(tmp_path):
    """As it lies on the hub: a configuration and a pickle."""
    folder = tmp_path / "mamba2-tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.save(published_weights(), folder / "pytorch_model.bin")
    return folder


def mamba_ssm_logits(weights, tokens):
    """mamba-ssm's own model on a CPU, its Triton kernels replaced by its plain versions of them."""
    sys.modules.setdefault("selective_scan_cuda", types.ModuleType("selective_scan_cuda"))
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
    from mamba_ssm.modules import mamba2
    from mamba_ssm.modules.ssd_minimal import ssd_minimal_discrete
    from mamba_ssm.ops.triton.layer_norm import RMSNorm
    from mamba_ssm.ops.triton.layernorm_gated import RMSNorm as RMSNormGated
    from mamba_ssm.ops.triton.layernorm_gated import rms_norm_ref

    def scan(x, dt, A, B, C, chunk_size, D, dt_bias, dt_softplus, **_):
        heads = x.shape[2]
        dt = F.softplus(dt + dt_bias)
        B, C = (part.expand(-1, -1, heads, -1) for part in (B, C))
        y, _ = ssd_minimal_discrete(x * dt[..., None], A * dt, B, C, block_len=8)
        return y + D[:, None] * x

    patch = pytest.MonkeyPatch()
    patch.setattr(mamba2, "mamba_chunk_scan_combined", scan)
    patch.setattr(mamba2, "causal_conv1d_fn", None)
    patch.setattr(
        RMSNormGated,
        "forward",
        lambda self, x, z=None: rms_norm_ref(
            x, self.weight, None, z=z, eps=self.eps, norm_before_gate=self.norm_before_gate
        ),
    )
    patch.setattr(RMSNorm, "forward", lambda self, x: rms_norm_ref(x, self.weight, None,
                                                                   eps=self.eps))  # fmt: skip
    settings = {**CONFIG, "fused_add_norm": False,
                "ssm_cfg": {**CONFIG["ssm_cfg"], "use_mem_eff_path": False}}  # fmt: skip
    try:
        model = MambaLMHeadModel(MambaConfig(**settings))
        assert model.state_dict().keys() == weights.keys()
        model.load_state_dict(weights)
        with torch.no_grad():
            return model(tokens).logits
    finally:
        patch.undo()


@pytest.mark.skipif(importlib.util.find_spec("mamba_ssm") is None, reason="needs mamba-ssm")
def test_logits_are_those_of_mamba_ssm(folder):
    tokens = torch.randint(0, 29, (2, 48), generator=torch.Generator().manual_seed(3))
    expected = mamba_ssm_logits(published_weights(), tokens)
    with torch.no_grad():
        logits, _ = read_state_spaces(folder)(tokens)
    assert logits.shape == expected.shape
    assert (logits - expected).abs().max() < 2e-5 * expected.abs().max()


def test_logits_are_those_of_a_plain_loop(folder):
    """Equation by equation (arXiv 2405.21060), in float64, from the published names."""
    weights = {name: value.double() for name, value in published_weights().items()}
    tokens = torch.randint(0, 29, (1, 9), generator=torch.Generator().manual_seed(4))

    def norm(x, weight):
        return weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    x = weights["backbone.embedding.weight"][tokens[0]]
    for i in range(2):
        w = {key.partition(f"layers.{i}.")[2]: value for key, value in weights.items()}
        z, xbc, dt = (norm(x, w["norm.weight"]) @ w["mixer.in_proj.weight"].T).split(
            [32, 64, 4], dim=-1
        )
        padded = torch.cat([torch.zeros(3, 64, dtype=torch.float64), xbc])
        taps = w["mixer.conv1d.weight"][:, 0].T
        xbc = F.silu(torch.stack([(padded[t : t + 4] * taps).sum(0) for t in range(9)])
                     + w["mixer.conv1d.bias"])  # fmt: skip
        dt, S, outputs = F.softplus(dt + w["mixer.dt_bias"]), 0.0, []
        for t in range(9):
            value, B, C = xbc[t, :32].view(4, 8), xbc[t, 32:48], xbc[t, 48:]
            decay = torch.exp(-w["mixer.A_log"].exp() * dt[t])
            S = decay[:, None, None] * S + dt[t, :, None, None] * value[:, :, None] * B
            outputs.append((S @ C + w["mixer.D"][:, None] * value).flatten())
        y = norm(torch.stack(outputs) * F.silu(z), w["mixer.norm.weight"])
        x = x + y @ w["mixer.out_proj.weight"].T
    expected = norm(x, weights["backbone.norm_f.weight"]) @ weights["lm_head.weight"].T
    with torch.no_grad():
        logits, _ = read_state_spaces(folder).double()(tokens)
    assert (logits[0] - expected).abs().max() < 1e-10


def test_import_and_inspect_by_name(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(tmp_path / "root"))
    run = CliRunner()
    done = run.invoke(make_app(["import"]), ["import", str(folder), "--training-length", "16"])
    assert done.exit_code == 0, done.output
    again = run.invoke(make_app(["import"]), ["import", str(folder), "--json"])
    found = json.loads(again.output)
    stored = find_stored_model(Root(tmp_path / "root"), "mamba2-tiny")
    assert (stored.identity, stored.training_length) == (found["identity"], 16)
    tokens = torch.arange(20)[None]
    assert torch.equal(stored.load()(tokens)[0], read_state_spaces(folder)(tokens)[0])
    torch.save(published_weights(seed=1), folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="holds another model"):
        run.invoke(make_app(["import"]), ["import", str(folder)], catch_exceptions=False)


def test_what_is_no_published_mamba2_is_refused(folder):
    def change(**changes):
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))

    change(ssm_cfg={"layer": "Mamba1"})
    with pytest.raises(UsageError, match="'Mamba1', not 'Mamba2'"):
        read_state_spaces(folder)
    change(attn_layer_idx=[1])
    with pytest.raises(UsageError, match="attn_layer_idx"):
        read_state_spaces(folder)
    change(ssm_cfg={**CONFIG["ssm_cfg"], "d_state": 8})
    with pytest.raises(UsageError, match="not those of config"):
        read_state_spaces(folder)
    change()
    torch.save({"a": types.SimpleNamespace()}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="cannot be read"):
        read_state_spaces(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UsageError, match="has neither model"):
        read_state_spaces(folder)
    with pytest.raises(UsageError, match="expected a folder as state-spaces"):
        read_state_spaces(folder / "nowhere")
