"""How the plain Triton kernels of the M²RNN are cut and launched; the operators call this."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# (kernel arguments are typed for the device)
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.m2rnn.triton_backward import scan_backward
from kernels.m2rnn.triton_step import scan_step
from kernels.triton_sigmoid import interpreted

SCRATCH_BYTES = 256 * 2**20  # the rebuilt states of one launch
PARTIAL_BYTES = 128 * 2**20  # the gradients that one launch leaves to be summed


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a case is cut: row tiles of BK x BV, chunks of C steps, warps for each program."""

    tiles: int
    BK: int
    BV: int
    C: int
    warps: int

    @property
    def tile_bytes(self) -> int:
        """Float32 bytes of one head's tiles."""
        return self.tiles * self.BK * self.BV * 4


def plan(N: int, K: int, V: int, *, delta: bool) -> Plan:
    """Tiles of 16 rows where rows are independent, all rows together for delta.

    The warps are what keeps the backward's registers from spilling (tests/kernels compile it).
    """
    BV = max(16, triton.next_power_of_2(V))
    rows = max(16, triton.next_power_of_2(K))
    BK = rows if delta else 16
    warps = max(1, BK * BV // (256 if BV == 16 and not delta else 128))
    warps = min(8, warps) if delta else warps
    tiles = triton.cdiv(K, BK)
    C = 64
    while C > 16 and N * tiles * BK * BV * 4 * C > SCRATCH_BYTES:
        C //= 2
    return Plan(tiles=tiles, BK=BK, BV=BV, C=C, warps=warps)


def kernel_options(
    plan: Plan, query, value, weight, gate_weight, keep, phi: str, delta: bool
) -> dict:
    """The compile-time choices that both passes share."""
    exact = query.dtype == torch.float32 or interpreted()
    operand = "emulated" if interpreted() else "bfloat16"
    operand = "float32" if query.dtype == torch.float32 else operand
    kinds = {None: "identity", 2: "diagonal", 3: "dense"}
    return {
        "K": query.shape[3], "V": value.shape[3], "BK": plan.BK, "BV": plan.BV, "C": plan.C,
        "WEIGHT": kinds[None if weight is None else weight.ndim], "PHI": phi,
        "STATE_GATE": gate_weight is not None, "DELTA": delta, "RESET": keep is not None,
        "PRECISE": exact, "OPERAND": operand,
        "num_warps": plan.warps, "num_stages": 1,
    }  # fmt: skip


def strided(x: Tensor) -> Tensor:
    """x itself if its last dimension is dense, as the kernels need; else a copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def layout_arguments(
    query: Tensor, key: Tensor, value: Tensor, forget: Tensor, weight, N: int
) -> tuple:
    """Head group sizes and the (batch, time, head) strides, in the kernels' order."""
    weights = N if weight is None else weight.shape[0]
    groups = [N // x.shape[2] for x in (query, key, value, forget)] + [N // weights]
    strides = [s for x in (query, key, value, forget) for s in x.stride()[:3]]
    return (*groups, *strides)


def run_step(query, key, value, forget, weight, state, gate_weight, keep, phi: str, delta: bool):
    """One step, nothing kept for a backward: one launch instead of the scan's several."""
    B, _, _, K = query.shape
    N, V = state.shape[1], value.shape[3]
    cut = plan(N, K, V, delta=delta)
    output = value.new_empty(B, 1, N, V)
    last = state.new_empty(B, N, K, V, dtype=torch.float32)
    layout = layout_arguments(query, key, value, forget, weight, N)
    options = kernel_options(cut, query, value, weight, gate_weight, keep, phi, delta)
    del options["C"]
    with torch.cuda.device_of(query):
        scan_step[(N, B)](
            query, key, value, forget, last if weight is None else weight.contiguous(),
            state.contiguous(), last if gate_weight is None else gate_weight.contiguous(),
            last if keep is None else keep, output, last, N,
            *layout[:5], *(s for i, s in enumerate(layout[5:]) if i % 3 != 1),
            **options,
        )  # fmt: skip
    return output, last, last.new_empty(0)


def run_sweep(cut: Plan, options: dict, clip: str, tensors: tuple, grads: list[Tensor]) -> None:
    """Run the reverse sweep over segments of time, summing each segment's partials into `grads`."""
    query, key, value, forget, weight, gate_weight, keep, dy, borders, carry, dw, du = tensors
    (B, T, _, K), (N, V) = query.shape, (carry.shape[1], value.shape[3])
    step_bytes = 4 * B * N * (2 * K + cut.tiles * (V + 1))
    segment = min(T, max(1, PARTIAL_BYTES // (step_bytes * cut.C)) * cut.C)
    stored = torch.float32 if query.dtype == torch.float32 else torch.bfloat16
    scratch = carry.new_empty(cut.tiles * B * N * cut.C * cut.BK * cut.BV, dtype=stored)
    dummy = carry
    for first in reversed(range(0, T, segment)):
        last = min(first + segment, T)
        S = last - first
        dq, dk = carry.new_empty(B, N, S, K), carry.new_empty(B, N, S, K)
        dv, df = carry.new_empty(cut.tiles, B, S, N, V), carry.new_empty(cut.tiles, B, S, N)
        with torch.cuda.device_of(query):
            scan_backward[(N, B, cut.tiles)](
                query, key, value, forget,
                dummy if weight is None else weight,
                dummy if gate_weight is None else gate_weight.contiguous(),
                dummy if keep is None else keep.contiguous(),
                dy, borders, scratch, carry, dq, dk, dv, df, dw, du,
                T, N, first, last, *layout_arguments(query, key, value, forget, weight, N),
                CLIP=clip, **options,
            )  # fmt: skip
        for grad, part in zip(grads[:2], (dq, dk), strict=True):
            grad[:, first:last] = part.unflatten(1, (grad.shape[2], -1)).sum(2).transpose(1, 2)
        for grad, part in zip(grads[2:], (dv, df), strict=True):
            grad[:, first:last] = part.sum(0).unflatten(2, (grad.shape[2], -1)).sum(3)
