"""What each backend of a kernel needs and covers, in words, for `arch-search blocks`."""

from dataclasses import dataclass

from kernels.backends import BACKENDS

NVIDIA = "NVIDIA GPU, compute capability 8.0 or later"
ANYWHERE = "any device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """One backend of a kernel: where it runs, and for which cases."""

    kernel: str
    backend: str
    runs_on: str
    covers: str


_BY_NAME: dict[str, tuple[str, str]] = {
    "loop": (ANYWHERE, "everything, step by step; the reference"),
    "torch": (ANYWHERE, "everything, in torch's operations"),
    "chunked": (ANYWHERE, "everything, in chunks of time"),
    "full": (ANYWHERE, "everything, with all logits in memory"),
    "sdpa": (ANYWHERE, "everything, by torch's scaled_dot_product_attention"),
    "flex": ("NVIDIA GPU, by torch's FlexAttention", "training whole rows, as its probe allows"),
    "parts": (ANYWHERE, "everything, kernel by kernel"),
    "triton": (NVIDIA, "everything"),
    "whole": (
        NVIDIA,
        "all between the projections as one operator: a convolution of at most 4 taps, gate "
        "softplus_decay in float32, write outer, no qk_norm or scale, an output gate before a norm "
        "over everything; whole rows without documents or a carried state",
    ),
    "fla": ("NVIDIA GPU, with flash-linear-attention installed", "what its probe finds right"),
    "causal_conv1d": (
        "NVIDIA GPU, with causal-conv1d installed",
        "2 to 4 taps, documents, too, as its probe finds right",
    ),
    "mamba_ssm": ("NVIDIA GPU, with mamba-ssm installed", "what its probe finds right"),
}
_CELL = (
    "bfloat16 with head size 16 (rnn: 32 too): one warp for a head and 16 sequences; a plainer "
    "kernel for float32 and for head sizes to"
)
_TRITON: dict[str, tuple[tuple[str, str], ...]] = {
    "convolution": (("triton", "at most 4 taps, without documents or a carried state"),),
    "gated_norm": (
        ("triton", "a gate before a norm over everything, of at most 8192 channels in all"),
    ),
    "m2rnn": (
        (
            "triton, fast kernel",
            "bfloat16; key_dim to 256; value_dim 16, 32; write outer; every gate but state; every "
            "nonlinearity but norm_clip; every W, clip and reset",
        ),
        (
            "triton, plain kernel",
            "the rest: float32, gate state, norm_clip, other value_dim to 64; write delta for "
            "heads of at most 2048 state elements, their sizes rounded up to powers of 2",
        ),
    ),
    "rnn": (("triton", f"{_CELL} 64"),),
    "gru": (("triton", f"{_CELL} 64"),),
    "lstm": (("triton", f"{_CELL} 64, in float32 to 32"),),
}


def coverage(kernel: str) -> list[Coverage]:
    """A row for each backend of `kernel`, the reference first."""
    rows = []
    for backend in BACKENDS[kernel]:
        runs_on, covers = _BY_NAME.get(backend, ("", ""))
        found = ((backend, covers),)
        if backend == "triton":
            found = _TRITON.get(kernel, found)
        rows += [
            Coverage(kernel=kernel, backend=name, runs_on=runs_on, covers=what)
            for name, what in found
        ]
    return rows
