"""The logistic function in four instructions, for Triton kernels near the speed of memory."""

# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# (kernel arguments are typed for the device)
import torch
import triton
import triton.language as tl


@torch.compiler.assume_constant_result
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU, which knows no PTX."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
def sigmoid(x, PTX: tl.constexpr):
    """1 / (1 + exp(-x)), right to a few units in float32's last place.

    `tl.sigmoid` takes about twelve instructions, most of them for results below 1e-38.
    """
    if PTX:
        e = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;",
            "=f,f",
            [x * -1.4426950408889634],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        s = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;",
            "=f,f",
            [1 + e],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        s = 1 / (1 + tl.exp(-x))
    return s
