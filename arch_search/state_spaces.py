"""Mamba-2 models as state-spaces publishes them (130M to 2.7B), read from a local folder.

A folder as on the Hugging Face hub: config.json, and model.safetensors or pytorch_model.bin. Our
Mamba-2 block is the same map with other names: z, x, B, C and dt leave one projection in that
order, the gate comes before the norm, and there is no channel mixer.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from arch_search.errors import UsageError
from arch_search.model import LanguageModel
from arch_search.spec import LayerSpec, ModelSpec

NAMES = {  # in one layer: theirs, ours
    "norm.weight": "mixer_norm.weight",
    "mixer.in_proj.weight": "mixer.input.weight",
    "mixer.conv1d.weight": "mixer.convolution.weight",
    "mixer.conv1d.bias": "mixer.convolution.bias",
    "mixer.A_log": "mixer.decay.A_log",
    "mixer.dt_bias": "mixer.decay.dt_bias",
    "mixer.D": "mixer.residual",
    "mixer.norm.weight": "mixer.norm.weight",
    "mixer.out_proj.weight": "mixer.output.weight",
}
OUTSIDE = {
    "backbone.embedding.weight": "embedding.weight",
    "backbone.norm_f.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
# What our block does not have in another form: the only value that is read.
EXPECTED = {"ngroups": 1, "D_has_hdim": False, "rmsnorm": True, "norm_before_gate": False,
            "bias": False, "conv_bias": True, "d_ssm": None, "activation": "swish"}  # fmt: skip


def read_state_spaces(folder: Path) -> LanguageModel:
    """The model of a folder, in float32.

    Raises:
        UsageError: no such folder, weights that are not those of the configuration, or a model
            with parts that the published Mamba-2 models do not have.
    """
    config = _config(folder)
    weights = _weights(folder)
    spec = _model_spec(config, weights)
    model = LanguageModel(spec)
    renamed = _renamed(weights, spec)
    try:
        model.load_state_dict(renamed)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise UsageError(
            f"{folder}: the weights are not those of config.json: {lines[0]}"
        ) from None
    return model.eval()


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist; expected a folder as state-spaces publishes it: config.json "
            "with model.safetensors or pytorch_model.bin"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    ssm = config.get("ssm_cfg") or {}
    if ssm.get("layer") != "Mamba2":
        raise UsageError(f"{path}: ssm_cfg.layer is {ssm.get('layer', 'Mamba1')!r}, not 'Mamba2'")
    unlike = {key: ssm[key] for key, value in EXPECTED.items() if ssm.get(key, value) != value}
    unlike |= {key: config[key] for key in ("attn_layer_idx", "d_intermediate") if config.get(key)}
    unlike |= {"rms_norm": False} if not config.get("rms_norm", True) else {}
    if unlike:
        key, value = next(iter(unlike.items()))
        raise UsageError(f"{path}: {key} is {value!r}; only Mamba-2 models as published are read")
    return config


def _weights(folder: Path) -> dict[str, Tensor]:
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        if safe.exists():
            return load_file(safe)
        # weights_only: a pickle may run code when it is loaded, this refuses all but tensors.
        return torch.load(pickled, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UsageError(f"{folder} has neither {safe.name} nor {pickled.name}") from None
    except (UnpicklingError, SafetensorError, OSError, RuntimeError, EOFError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"the weights in {folder} cannot be read: {first}") from None


def _model_spec(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ModelSpec:
    """Sizes from the configuration; the vocabulary, which is padded, from the embedding."""
    width, ssm = int(config["d_model"]), config["ssm_cfg"]
    head_dim = ssm.get("headdim", 64)
    options = {
        "head_dim": head_dim,
        "heads": ssm.get("expand", 2) * width // head_dim,
        "state_dim": ssm.get("d_state", 128),
        "groups": 1,
        "convolution": ssm.get("d_conv", 4),
    }
    embedding, head = (
        weights.get(name) for name in ("backbone.embedding.weight", "lm_head.weight")
    )
    if embedding is None:
        raise UsageError(f"no backbone.embedding.weight among the weights: {sorted(weights)[:5]}")
    layer = LayerSpec(kind="mamba2", options=options, mlp_width=0)
    return ModelSpec(
        layers=(layer,) * int(config["n_layer"]),
        width=width,
        vocabulary=len(embedding),
        tie_embeddings=head is None or torch.equal(head, embedding),
        norm_eps=1e-5,
    )


def _renamed(weights: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    renamed = {}
    for name, value in weights.items():
        first, _, rest = name.removeprefix("backbone.layers.").partition(".")
        if name in OUTSIDE:
            ours = OUTSIDE[name]
        elif name.startswith("backbone.layers.") and rest in NAMES:
            ours = f"layers.{first}.{NAMES[rest]}"
        else:
            raise UsageError(f"a weight {name!r} that the published Mamba-2 models do not have")
        if ours == "head.weight" and spec.tie_embeddings:
            continue
        value = value.squeeze(1) if rest == "mixer.conv1d.weight" else value  # (C, 1, W) -> (C, W)
        renamed[ours] = value.float()
    return renamed
