"""Model FLOPs a token by part, and the share of a device's peak that they make up (MFU)."""

import torch

from arch_search.model import LanguageModel
from arch_search.spec import ModelSpec

TRAINING = 3  # a backward pass has twice the forward pass's products; recomputation is not counted

# Dense matrix products a second, in TFLOP/s, as NVIDIA's data sheets state them (without sparsity).
STATED = {
    "bfloat16": {
        "B200": 2250.0, "GH200": 989.4, "H200": 989.4, "H100 PCIe": 756.0, "H100 NVL": 835.0,
        "H100": 989.4, "A100": 312.0, "L40S": 362.0, "A10": 125.0,
    },
    "tf32": {
        "B200": 1100.0, "GH200": 494.7, "H200": 494.7, "H100 PCIe": 378.0, "H100 NVL": 417.5,
        "H100": 494.7, "A100": 156.0,
    },
    "float32": {
        "GH200": 67.0, "H200": 67.0, "H100 PCIe": 51.0, "H100 NVL": 60.0, "H100": 67.0,
        "A100": 19.5,
    },
}  # fmt: skip


class OverPeak(ValueError):  # noqa: N818 - what it says, not an error's kind
    """More FLOPs a second than the device can do: a count or a clock is wrong."""


def forward_flops(spec: ModelSpec, length: int) -> dict[str, float]:
    """Forward FLOPs a token of sequences of `length` tokens, by kind of mixer, "mlp" and "head".

    A multiply-add is two. Products of matrices, short convolutions and the arithmetic of a
    recurrence's state are counted; norms, activations and other pointwise work are not. Parts sum
    to `count_model(...).forward_flops_per_token`.
    """
    with torch.device("meta"):
        model = LanguageModel(spec)
    parts: dict[str, float] = {}
    for layer, made in zip(spec.layers, model.each_layer(), strict=True):
        for part, flops in (
            (layer.kind, made.mixer.cost(length).forward_flops_per_token),
            ("mlp", made.mlp.cost().forward_flops_per_token),
        ):
            parts[part] = parts.get(part, 0.0) + flops
    return {**parts, "head": 2.0 * spec.width * spec.vocabulary}


def stated_peak(device_name: str, precision: str) -> float | None:
    """TFLOP/s of a device by its name; None where we know of no statement.

    float32 products that torch was allowed to compute in TF32 are held to that peak.
    """
    if precision == "float32" and torch.get_float32_matmul_precision() != "highest":
        precision = "tf32"
    known = STATED[precision]
    return next((peak for name, peak in known.items() if name.lower() in device_name.lower()), None)


def measured_peak(device: torch.device, precision: str, *, size: int = 1024) -> float:
    """TFLOP/s of the fastest of some square matrix products, for a device that is in no table."""
    from arch_search.throughput.timing import time_calls

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    one = torch.randn(size, size, device=device).to(dtype)
    seconds = time_calls(lambda: one @ one, device, warmup=3, calls=10)
    return 2 * size**3 / min(seconds) / 1e12


def utilisation(flops_per_second: float, peak_tflops: float, *, source: str) -> float:
    """MFU: the share of the peak that model FLOPs make up.

    Raises:
        OverPeak: it would be over 100 %.
    """
    share = flops_per_second / (peak_tflops * 1e12)
    if share > 1:
        raise OverPeak(
            f"MFU would be {share:.0%}: {flops_per_second / 1e12:.4g} TFLOP/s of model FLOPs, but "
            f"the device's peak ({source}) is {peak_tflops:.4g}; a count, the clock or the peak is "
            "wrong, so this speed is not stated"
        )
    return share
