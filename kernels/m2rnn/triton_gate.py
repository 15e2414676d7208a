"""M²RNN's forget gate f = exp(-exp(A) softplus(a + dt)) in one kernel each way, in float32.

da = df f (-exp(A)) s(a + dt);  d dt = sum of da;  dA = sum of df f (-exp(A) softplus(a + dt))

f lies in memory by head, then time: the scan, whose warp has one head, then reads eight steps of it
from one sector instead of eight. The sums over tokens are kept by program and added in a fixed
order.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# (kernel arguments are typed for the device)
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_sigmoid import interpreted, sigmoid

STEPS, HEADS = 32, 32  # of a program's tile
TILES = 16  # in time, of a backward program


@triton.jit
def _softplus(x):
    """log(1 + exp(x)), relatively exact also where it is small."""
    e = tl.exp(-tl.abs(x))
    series = e * (1 - e * (1 / 2 - e * (1 / 3 - e * (1 / 4 - e / 5))))
    return tl.maximum(x, 0.0) + tl.where(e < 0.05, series, tl.log(1 + e))


@triton.jit
def gate_forward(a, A_log, dt_bias, f, T, N, a_b, a_t, STEPS: tl.constexpr, HEADS: tl.constexpr):
    n = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    t = tl.program_id(0) * STEPS + tl.arange(0, STEPS)
    b = tl.program_id(2).to(tl.int64)
    inside = (t < T)[:, None] & (n < N)[None, :]
    steps = t.to(tl.int64)[:, None]
    x = tl.load(a + b * a_b + steps * a_t + n[None, :], mask=inside, other=0.0).to(tl.float32)
    x += tl.load(dt_bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    rate = tl.exp(tl.load(A_log + n, mask=n < N, other=0.0).to(tl.float32))
    out = tl.exp(-rate[None, :] * _softplus(x))
    tl.store(f + (b * N + n)[None, :] * T + steps, out, mask=inside)


@triton.jit
def gate_backward(
    a, A_log, dt_bias, f, df, da, sums, T, N, a_b, a_t, da_b, da_t,
    STEPS: tl.constexpr, HEADS: tl.constexpr, TILES: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """df: (B, T, N), dense.   sums: (B, programs in time, 2, N) float32, shares of dA and d dt."""
    n = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    b = tl.program_id(2).to(tl.int64)
    bias = tl.load(dt_bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    rate = tl.exp(tl.load(A_log + n, mask=n < N, other=0.0).to(tl.float32))[None, :]
    of_rate = tl.zeros((STEPS, HEADS), tl.float32)
    of_bias = tl.zeros((STEPS, HEADS), tl.float32)
    for tile in range(TILES):
        t = (tl.program_id(0) * TILES + tile) * STEPS + tl.arange(0, STEPS)
        inside = (t < T)[:, None] & (n < N)[None, :]
        steps = t.to(tl.int64)[:, None]
        x = tl.load(a + b * a_b + steps * a_t + n[None, :], mask=inside, other=0.0)
        x = x.to(tl.float32) + bias
        kept = tl.load(f + (b * N + n)[None, :] * T + steps, mask=inside, other=0.0)
        grad = tl.load(df + (b * T + steps) * N + n[None, :], mask=inside, other=0.0)
        grad = -rate * kept * grad.to(tl.float32)
        of_rate += grad * _softplus(x)
        grad *= sigmoid(x, PTX)
        of_bias += grad
        tl.store(da + b * da_b + steps * da_t + n[None, :], grad.to(da.dtype.element_ty), inside)
    sums += (b * tl.num_programs(0) + tl.program_id(0)) * 2 * N + n
    tl.store(sums, tl.sum(of_rate, axis=0), mask=n < N)
    tl.store(sums + N, tl.sum(of_bias, axis=0), mask=n < N)


def decay_gate(a: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """f (B, T, N), float32, its steps next to each other; a (B, T, N), dense in N alone."""
    B, T, N = a.shape
    f = a.new_empty(B, N, T, dtype=torch.float32)
    with torch.cuda.device_of(a):
        gate_forward[(triton.cdiv(T, STEPS), triton.cdiv(N, HEADS), B)](
            a, A_log, dt_bias, f, T, N, *a.stride()[:2], STEPS=STEPS, HEADS=HEADS, num_warps=4
        )
    return f.transpose(1, 2)


def decay_gate_back(
    a: Tensor, A_log: Tensor, dt_bias: Tensor, f: Tensor, df: Tensor, da: Tensor
) -> tuple[Tensor, Tensor]:
    """Fills da; the gradients of A_log and dt_bias, float32. f as `decay_gate` gave it."""
    B, T, N = a.shape
    programs = triton.cdiv(T, STEPS * TILES)
    sums = a.new_empty(B, programs, 2, N, dtype=torch.float32)
    with torch.cuda.device_of(a):
        gate_backward[(programs, triton.cdiv(N, HEADS), B)](
            a, A_log, dt_bias, f, df, da, sums, T, N, *a.stride()[:2], *da.stride()[:2],
            STEPS=STEPS, HEADS=HEADS, TILES=TILES, PTX=not interpreted(), num_warps=4,
        )  # fmt: skip
    d_rate, d_bias = sums.sum((0, 1))
    return d_rate.clone(), d_bias.clone()
