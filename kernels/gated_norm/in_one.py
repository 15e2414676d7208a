"""A recurrence's output: value residual, SiLU gate and RMSNorm in one kernel each way.

a = y + D v;  u = a SiLU(g);  r = (mean u² + eps)^(-1/2);  out = w u r
du = r w dout - u r³ / S sum(w dout u);  dy = du SiLU(g);  dv = D dy;  dg = du a SiLU'(g)

S is the last axis' size, over which mean and sums run; all in float32. dw and dD are summed over
rows by program, and the programs' sums in a fixed order.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# (kernel arguments are typed for the device)
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_sigmoid import interpreted, sigmoid

PROGRAMS = 1056  # of the backward: 8 on each multiprocessor of an H200


@triton.jit
def _gated(
    y, value, gate, scale, at, at_v, at_g, inside, RESIDUAL: tl.constexpr, PTX: tl.constexpr
):
    """a, v, g and sigmoid(g) of a row."""
    a = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    v = a
    if RESIDUAL:
        v = tl.load(value + at_v, mask=inside, other=0.0).to(tl.float32)
        a += scale * v
    g = tl.load(gate + at_g, mask=inside, other=0.0).to(tl.float32)
    return a, v, g, sigmoid(g, PTX)


@triton.jit
def gate_norm_forward(
    y, value, residual, gate, weight, out, S, eps, y_row, v_row, g_row,
    RESIDUAL: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < S
    w = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    scale = w
    if RESIDUAL:
        scale = tl.load(residual + i, mask=inside, other=0.0).to(tl.float32)
    a, _, g, s = _gated(
        y, value, gate, scale, row * y_row + i, row * v_row + i, row * g_row + i, inside, RESIDUAL,
        PTX,
    )  # fmt: skip
    u = a * g * s
    r = tl.rsqrt(tl.sum(u * u, axis=0) / S + eps)
    tl.store(out + row * S + i, (w * u * r).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_norm_backward(
    y, value, residual, gate, weight, d_out, dy, d_value, d_gate, sums,
    rows, S, eps, y_row, v_row, g_row, o_row, dg_row,
    RESIDUAL: tl.constexpr, PASSED: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """sums: (programs, 2, S) float32, shares of dw and dD. PASSED: dv is left to who has dy."""
    i = tl.arange(0, BLOCK)
    inside = i < S
    w = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    scale = w
    if RESIDUAL:
        scale = tl.load(residual + i, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    d_scale = tl.zeros((BLOCK,), tl.float32)
    row = tl.program_id(0).to(tl.int64)
    for _ in range(tl.program_id(0), rows, tl.num_programs(0)):
        a, v, g, s = _gated(
            y, value, gate, scale, row * y_row + i, row * v_row + i, row * g_row + i, inside,
            RESIDUAL, PTX,
        )  # fmt: skip
        silu = g * s
        u = a * silu
        r = tl.rsqrt(tl.sum(u * u, axis=0) / S + eps)
        grad = tl.load(d_out + row * o_row + i, mask=inside, other=0.0).to(tl.float32)
        dw += grad * u * r
        grad *= w
        du = r * grad - u * (r * r * r / S * tl.sum(grad * u, axis=0))
        da = du * silu
        tl.store(dy + row * S + i, da.to(dy.dtype.element_ty), mask=inside)
        if RESIDUAL:
            d_scale += da * v
        if RESIDUAL and not PASSED:
            tl.store(d_value + row * S + i, (da * scale).to(d_value.dtype.element_ty), mask=inside)
        dg = du * a * (s + silu * (1 - s))
        tl.store(d_gate + row * dg_row + i, dg.to(d_gate.dtype.element_ty), mask=inside)
        row += tl.num_programs(0)
    sums += tl.program_id(0).to(tl.int64) * 2 * S
    tl.store(sums + i, dw, mask=inside)
    tl.store(sums + S + i, d_scale, mask=inside)


def gate_norm(
    y: Tensor, value: Tensor | None, residual: Tensor | None, gate: Tensor, weight: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    """w RMS((y + D v) SiLU(g)) over the last axis.

    Args:
        y, value, gate: (B, T, S); `value` and `residual` None for no residual.
        residual (D), weight (w): S elements.
    """
    residual = None if residual is None else residual.reshape(-1)
    return _forward(y, value, residual, gate, weight.reshape(-1), eps)


def _row(x: Tensor) -> int:
    """The stride from row to row of (B, T, S), whose B and T lie evenly."""
    return x.stride(1)


def _even(x: Tensor) -> Tensor:
    B, T, _ = x.shape
    even = x.stride(-1) == 1 and (B == 1 or T == 1 or x.stride(0) == T * x.stride(1))
    return x if even and T > 1 else x.contiguous()


def _shape(S: int) -> dict[str, int]:
    block = triton.next_power_of_2(S)
    warps = min(8, max(1, block // 256))
    return {"BLOCK": block, "PTX": not interpreted(), "num_warps": warps}


@torch.library.custom_op("arch_search::gate_norm", mutates_args=())
def _forward(
    y: Tensor, value: Tensor | None, residual: Tensor | None, gate: Tensor, weight: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    return run_forward(y, value, residual, gate, weight, eps)


def run_forward(
    y: Tensor, value: Tensor | None, residual: Tensor | None, gate: Tensor, weight: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    """`gate_norm` without its gradient; residual and weight flat."""
    B, T, S = y.shape
    y, gate = _even(y), _even(gate)
    value = y if value is None else _even(value)
    out = y.new_empty(B, T, S)
    with torch.cuda.device_of(y):
        gate_norm_forward[(B * T,)](
            y, value, weight if residual is None else residual.contiguous(), gate, weight, out, S,
            eps, _row(y), _row(value), _row(gate), RESIDUAL=residual is not None, **_shape(S),
        )  # fmt: skip
    return out


@_forward.register_fake
def _(y, value, residual, gate, weight, eps):
    return y.new_empty(y.shape)


@torch.library.custom_op("arch_search::gate_norm_backward", mutates_args=())
def _backward(
    y: Tensor, value: Tensor | None, residual: Tensor | None, gate: Tensor, weight: Tensor,
    d_out: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of y, value (empty if none), gate, and in float32 of weight and residual."""
    d_gate = gate.new_empty(gate.shape)
    dy, d_value, dw, dr = run_backward(
        y, value, residual, gate, weight, d_out, eps, d_gate, passed=False
    )
    return dy, d_value, d_gate, dw, dr


def run_backward(
    y: Tensor, value: Tensor | None, residual: Tensor | None, gate: Tensor, weight: Tensor,
    d_out: Tensor, eps: float, d_gate: Tensor, *, passed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of y, value (empty if none or `passed`), weight and residual; fills `d_gate`.

    passed: the value's gradient, D dy, is left to the caller, who has dy and adds to it.
    """
    B, T, S = y.shape
    y, gate, d_out = _even(y), _even(gate), _even(d_out)
    dy = y.new_empty(B, T, S)
    d_value = y.new_empty(0) if value is None or passed else value.new_empty(B, T, S)
    value = y if value is None else _even(value)
    programs = min(PROGRAMS, B * T)
    sums = y.new_empty(programs, 2, S, dtype=torch.float32)
    with torch.cuda.device_of(y):
        gate_norm_backward[(programs,)](
            y, value, weight if residual is None else residual.contiguous(), gate, weight, d_out,
            dy, d_value, d_gate, sums, B * T, S, eps, _row(y), _row(value), _row(gate),
            _row(d_out), _row(d_gate), RESIDUAL=residual is not None, PASSED=passed, **_shape(S),
        )  # fmt: skip
    dw, d_residual = sums.sum(0)
    return dy, d_value, dw.clone(), d_residual.clone()


@_backward.register_fake
def _(y, value, residual, gate, weight, d_out, eps):
    wide = weight.new_empty(y.shape[-1], dtype=torch.float32)
    d_value = y.new_empty(0) if value is None else value.new_empty(y.shape)
    return y.new_empty(y.shape), d_value, gate.new_empty(y.shape), wide, wide.new_empty(wide.shape)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.eps = inputs[5]


def _gradient(ctx, d_out: Tensor):
    y, value, residual, gate, weight = ctx.saved_tensors
    dy, dv, dg, dw, dr = _backward(y, value, residual, gate, weight, d_out, ctx.eps)
    return (
        dy, None if value is None else dv, None if residual is None else dr.to(residual.dtype), dg,
        dw.to(weight.dtype), None,
    )  # fmt: skip


_forward.register_autograd(_gradient, setup_context=_keep)
