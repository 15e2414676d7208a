"""Launches the fast M²RNN kernels: what they cover, how a case is cut, what is summed after."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (kernel arguments are typed for the device)
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.m2rnn.gluon_backward import fast_backward
from kernels.m2rnn.gluon_forward import fast_forward
from kernels.m2rnn.partial_sums import sum_gradients, sum_tiles
from kernels.m2rnn.sums_beside import Sums

BORDER = 16  # steps between kept states; a chunk of them, rebuilt, stays in shared memory
PARTIAL_BYTES = 80 * 2**20  # shares of outputs or gradients that wait to be summed
SHARE = torch.bfloat16  # of a head's shares of dq and dk, which are summed in float32
TILE_SHARE = torch.bfloat16  # of a row tile's shares of y and dv
BESIDE = False  # sum a segment's shares while the next is scanned: slower (kernels/MEASURED.md)
FORWARD = {  # by rows: see gluon_forward.fast_forward; as they were fastest (kernels/MEASURED.md)
    32: {"FOUR": True, "AHEAD": 8, "CHAINED": True, "LATE": False, "LEVEL": 1},
    16: {"FOUR": False, "AHEAD": 8, "CHAINED": False, "LATE": False, "LEVEL": 2},
}
WARPS = 528  # of an H200 that one more warp each would not slow: 4 a multiprocessor
PHIS = ("tanh", "identity", "softsign", "relu", "hard_tanh")


def covers(query: Tensor, value: Tensor, gate_weight: Tensor | None, phi: str, delta: bool) -> bool:
    """Whether the fast kernels can run this: bfloat16 inputs, V 16 or 32, independent rows."""
    return (
        query.device.type == "cuda"
        and query.dtype == value.dtype == torch.bfloat16
        and value.shape[3] in (16, 32)
        and gate_weight is None
        and phi in PHIS
        and not delta
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Rows of one program, the steps between two summations, and what compilers are told: whether
    no block of steps and no tile of rows is cut short, so that nothing is masked."""

    rows: int
    tiles: int
    segment: int
    even: bool

    def backward_options(self, V: int) -> dict:
        """Rebuild a chunk beside the sweep where few warps run; else fit a third on a scheduler."""
        return {
            "R": self.rows,
            "EVEN": self.even,
            "INTERLEAVE": self.rows * V == 256,
            "num_warps": 1,
            "maxnreg": 168 if self.rows == 32 else 255,
        }


def fills_the_gpu(B: int, N: int, K: int, V: int) -> bool:
    """Whether the heads keep it busy with tiles of 32 rows; else they are cut into 16."""
    return V == 16 and K > 16 and B * N * triton.cdiv(K, 32) >= 2 * WARPS


def cut(B: int, T: int, N: int, K: int, V: int, *, step_bytes) -> Cut:
    """Wide tiles when the heads fill the GPU, narrow ones when more programs are needed.

    Args:
        step_bytes: bytes of partial results for one time step, as a function of the tiles.
    """
    rows = 32 if fills_the_gpu(B, N, K, V) else 16
    tiles = triton.cdiv(K, rows)
    whole = triton.cdiv(T, BORDER) * BORDER
    budget = max(2**20, min(PARTIAL_BYTES, B * N * K * V * whole // BORDER * 2))
    budget //= 2 if BESIDE else 1
    affordable = budget // (step_bytes(tiles) * BORDER) * BORDER
    return Cut(
        rows=rows,
        tiles=tiles,
        segment=max(BORDER, min(whole, affordable)),
        even=T % BORDER == 0 and K % rows == 0,
    )


def _common(query, key, value, forget, weight, N: int) -> tuple:
    weights = N if weight is None else weight.shape[0]
    groups = [N // x.shape[2] for x in (query, key, value, forget)] + [N // weights]
    return (*groups, *(s for x in (query, key, value, forget) for s in x.stride()[:3]))


def _weight_kind(weight: Tensor | None) -> str:
    return "identity" if weight is None else {2: "diagonal", 3: "dense"}[weight.ndim]


def border_count(T: int) -> int:
    """How many states the forward keeps for the backward."""
    return -(-T // BORDER)


def run_forward(
    query: Tensor, key: Tensor, value: Tensor, forget: Tensor, weight: Tensor | None,
    state: Tensor, keep: Tensor | None, phi: str, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output (B, T, N, V), last state (B, N, K, V) float32, kept states (B, borders, N, K, V)."""
    B, T, _, K = query.shape
    N, V = state.shape[1], value.shape[3]
    step_bytes = B * N * V * TILE_SHARE.itemsize
    how = cut(B, T, N, K, V, step_bytes=lambda tiles: tiles * step_bytes)
    last = state.float().clone(memory_format=torch.contiguous_format)
    borders = value.new_empty(B, border_count(T) if save else 0, N, K, V)
    output = value.new_empty(B, T, N, V)
    segment = how.segment if how.tiles > 1 else T
    sums = Sums(query.device, beside=BESIDE and segment < T)

    def scan(first: int, end: int, target: Tensor) -> None:
        fast_forward[(N, B, how.tiles)](
            query, key, value, forget, last if weight is None else weight,
            last if keep is None else keep, last, target, borders, T, N, first, end,
            *_common(query, key, value, forget, weight, N),
            K=K, V=V, R=how.rows, C=BORDER, WEIGHT=_weight_kind(weight), PHI=phi,
            RESET=keep is not None, SAVE=save, EVEN=how.even and how.rows == 32,
            **FORWARD[how.rows], num_warps=1,
        )  # fmt: skip

    with torch.cuda.device_of(query):
        if how.tiles == 1:
            scan(0, T, output)
        for first in range(0, T if how.tiles > 1 else 0, segment):
            end = min(first + segment, T)
            parts = sums.shares([((how.tiles, B, end - first, N, V), TILE_SHARE)])
            scan(first, end, *parts)
            sums.run(sum_tiles, *parts, output, first)
        sums.finish()
    return output, last, borders


def run_backward(
    query: Tensor, key: Tensor, value: Tensor, forget: Tensor, weight: Tensor | None,
    keep: Tensor | None, borders: Tensor, grad_output: Tensor, grad_last: Tensor, phi: str,
    clip: str, *, into: list[Tensor] | None = None, residual: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value, forget, weight (float32, empty if None) and state.

    The first four are written to `into`, if given; with a `residual` D (N, V) the value's is that
    of y + D v.
    """
    B, T, _, K = query.shape
    N, V = grad_last.shape[1], value.shape[3]
    step_bytes = 2 * K * SHARE.itemsize
    grads = into or [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in (query, key, value, forget)
    ]

    def of_tiles(tiles: int) -> int:
        return B * N * (step_bytes + tiles * (V * TILE_SHARE.itemsize + 4))

    how = cut(B, T, N, K, V, step_bytes=of_tiles)
    carry = grad_last.float().clone(memory_format=torch.contiguous_format)
    grad_output = grad_output.contiguous()
    square = () if weight is None else weight.shape[1:]
    dw = carry.new_zeros(how.tiles, B, N, *square) if weight is not None else carry
    sums = Sums(query.device, beside=BESIDE and how.segment < T)
    with torch.cuda.device_of(query):
        for first in reversed(range(0, T, how.segment)):
            end = min(first + how.segment, T)
            S = end - first
            parts = sums.shares([
                ((B, N, S, K), SHARE), ((B, N, S, K), SHARE),
                ((how.tiles, B, S, N, V), TILE_SHARE), ((how.tiles, B, S, N), torch.float32),
            ])  # fmt: skip
            fast_backward[(N, B, how.tiles)](
                query, key, value, forget, carry if weight is None else weight,
                carry if keep is None else keep, grad_output, borders, carry, *parts, dw,
                T, N, first, end, *_common(query, key, value, forget, weight, N),
                K=K, V=V, C=BORDER, WEIGHT=_weight_kind(weight), PHI=phi, RESET=keep is not None,
                CLIP=clip, **how.backward_options(V),
            )  # fmt: skip
            sums.run(sum_gradients, parts, grads, first, grad_output, residual)
        sums.finish()
    d_weight = carry.new_empty(0)
    if weight is not None:
        d_weight = dw.sum((0, 1)).unflatten(0, (weight.shape[0], -1)).sum(1)
    return (*grads, d_weight, carry)  # type: ignore[return-value]
