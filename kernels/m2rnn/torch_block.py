"""One block of steps of the M²RNN scan in torch: forward from its border, then in reverse."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.m2rnn.reference import CLIP_BOUND, Clip, Nonlinearity, Write

BLOCK = 16  # steps between kept states: about sqrt(T) for the lengths that a CPU trains on


class Buffers:
    """Memory that every block uses again: fresh pages took over a quarter of the time."""

    def __init__(self, like: Tensor) -> None:
        self._like, self._held = like, {}

    def take(self, name: str, steps: int, *shape: int) -> Tensor:
        """An uninitialised (steps, *shape), steps <= BLOCK + 1; the same memory each time."""
        if name not in self._held:
            self._held[name] = self._like.new_empty(BLOCK + 1, *shape)
        return self._held[name][:steps]


@dataclass(kw_only=True, slots=True)
class Recurrence:
    """The inputs over all time, k (T, N, B, K), v (T, N, B, V), f (T, N, B), and what is fixed.

    `keep` (T, 1, B, 1, 1) is 0 where a sequence resets; `resets[t]` says whether any does.
    """

    k: Tensor
    v: Tensor
    f: Tensor
    weight: Tensor | None
    gate_weight: Tensor | None
    keep: Tensor | None
    nonlinearity: Nonlinearity
    write: Write
    clip: Clip
    resets: list[bool] = field(default_factory=list)
    buffers: Buffers


@dataclass(kw_only=True, slots=True)
class Block:
    """What one block of steps leaves for its reverse sweep; leading axis time."""

    previous: Tensor  # H_{t-1} after the reset, (C, N, B, K, V)
    after: Tensor  # H_t
    z: Tensor  # phi's value
    gate: Tensor  # f_t, (C, N, B, 1 or K, 1)
    norm: Tensor | None  # norm_clip's divisor, (C, N, B, K, 1)


def run_block(
    r: Recurrence, s: slice, h: Tensor, z: Tensor, norm: Tensor | None, *, known: bool
) -> Block:
    """The recurrence over the steps `s` from the state `h` (N, B, K, V) at their border.

    z (C, N, B, K, V) and, for norm_clip, norm hold phi's values and divisors if `known`, else
    receive them.
    """
    k, f, steps = r.k[s], r.f[s], s.stop - s.start
    states = r.buffers.take("states", steps + 1, *h.shape)
    states[0] = h
    if not known:
        outer(k, r.v[s], out=z)
    gate = f[..., None, None]
    if r.gate_weight is not None:
        gate = r.buffers.take("gate", steps, *h.shape[:-1], 1)
    resets = any(r.resets[s])
    previous = r.buffers.take("previous", steps, *h.shape) if resets else states[:-1]
    for t in range(steps):
        past = previous[t]
        if resets:
            assert r.keep is not None
            torch.mul(states[t], r.keep[s.start + t], out=past)
        if not known:
            if r.write == "delta":
                recalled = read_out(k[t], past)
                z[t].addcmul_(k[t][..., :, None], recalled[..., None, :], value=-1)
            add_mixed(z[t], past, r.weight)
            apply_phi(z[t], r.nonlinearity, None if norm is None else norm[t])
        if r.gate_weight is not None:
            torch.matmul(past, r.gate_weight[:, None, :, None], out=gate[t])
            gate[t].add_(f[t][..., None, None]).sigmoid_()
        torch.lerp(z[t], past, gate[t].expand_as(past), out=states[t + 1])
    return Block(previous=previous, after=states[1:], z=z, gate=gate, norm=norm)


def sweep(
    r: Recurrence, s: slice, block: Block, q: Tensor, dy: Tensor, carry: Tensor
) -> tuple[Tensor, Tensor]:
    """Sweep one block in reverse for q (C, N, B, K), dy (C, N, B, V); `carry` changes in place.

    Returns:
        D = dL/d(pre-activation), (C, N, B, K, V), and dL/d(f, or the state gate's pre-activation),
        (C, N, B, K), which f's own gradient sums over K.
    """
    steps, shape = s.stop - s.start, carry.shape
    R, D, spare = (r.buffers.take(name, steps, *shape) for name in ("R", "D", "spare"))
    outer(q, dy, out=R)
    slope_through(block, r.nonlinearity, out=D)
    torch.sub(block.previous, block.z, out=spare)
    state_gate = r.gate_weight is not None
    da = r.buffers.take("da", steps, *shape[:-1]) if state_gate else None
    transposed = r.weight if r.weight is None or r.weight.ndim == 2 else r.weight.mT
    for t in reversed(range(steps)):
        take_carry(R[t], carry, r.clip)
        d = D[t].mul_(R[t])
        if block.norm is not None:
            n, z = block.norm[t], block.z[t]
            d.addcmul_(z, (z * d).sum(-1, keepdim=True) * (n > 1), value=-1).div_(n)
        torch.mul(R[t], block.gate[t], out=carry)
        add_mixed(carry, d, transposed)
        if r.write == "delta":
            k = r.k[s.start + t]
            carry.addcmul_(k[..., :, None], read_out(k, d)[..., None, :], value=-1)
        if da is not None:
            assert r.gate_weight is not None
            g = block.gate[t][..., 0]
            torch.sum(R[t] * spare[t], dim=-1, out=da[t])
            da[t].mul_(g * (1 - g))
            carry.addcmul_(da[t][..., None], r.gate_weight[:, None, None, :])
        if r.resets and r.resets[s.start + t]:
            assert r.keep is not None
            carry.mul_(r.keep[s.start + t])
    return D, spare.mul_(R).sum(dim=-1) if da is None else da


def read_out(x: Tensor, state: Tensor) -> Tensor:
    """stateᵀ x: (…, K), (…, K, V) -> (…, V)."""
    return (x[..., None, :] @ state)[..., 0, :]


def read_rows(y: Tensor, state: Tensor) -> Tensor:
    """state y: (…, V), (…, K, V) -> (…, K). As a row times the transpose: five times the speed."""
    return (y[..., None, :] @ state.mT)[..., 0, :]


def outer(x: Tensor, y: Tensor, *, out: Tensor) -> None:
    """x yᵀ: (…, K), (…, V) -> (…, K, V)."""
    torch.mul(x[..., :, None], y[..., None, :], out=out)


def weight_gradient(previous: Tensor, D: Tensor, like: Tensor) -> Tensor:
    """sum over time and batch of H_{t-1}ᵀ D, for a dense (N, V, V) or diagonal (N, V) weight."""
    if like.ndim == 2:
        return (previous * D).sum(dim=(0, 2, 3))
    h, d = previous.flatten(2, 3), D.flatten(2, 3)  # (C, N, BK, V)
    return (h.mT @ d).sum(dim=0)


def add_mixed(z: Tensor, h: Tensor, weight: Tensor | None) -> None:
    """z += h W in place, for (N, B, K, V)."""
    if weight is None:
        z.add_(h)
    elif weight.ndim == 2:
        z.addcmul_(h, weight[:, None, None, :])
    else:
        N, B, K, V = z.shape
        z.view(N, B * K, V).baddbmm_(h.view(N, B * K, V), weight)


def apply_phi(z: Tensor, name: Nonlinearity, norm: Tensor | None) -> None:
    """phi in place; `norm` receives norm_clip's divisor."""
    match name:
        case "tanh":
            _tanh_(z)
        case "softsign":
            z.div_(z.abs().add_(1))
        case "relu":
            z.relu_()
        case "hard_tanh":
            z.clamp_(-1, 1)
        case "norm_clip":
            assert norm is not None
            torch.linalg.vector_norm(z, dim=-1, keepdim=True, out=norm)
            z.div_(norm.clamp_(min=1))


def _tanh_(z: Tensor) -> None:
    """tanh x = e / (e + 2) with e = expm1(2 x), in place; on a CPU twice the speed of torch's.

    As exact: expm1 keeps the relative precision of small x, which a state starts from.
    """
    if z.is_cuda:
        z.tanh_()
    else:
        z.mul_(2).clamp_(max=60).expm1_()  # beyond 60 it is 1 to any precision, and would overflow
        z.div_(z + 2)


def slope_through(block: Block, name: Nonlinearity, *, out: Tensor) -> None:
    """(1 - f) phi', from phi's value where it acts element by element; 1 - f where it does not."""
    z, through = block.z, 1 - block.gate
    match name:
        case "tanh":
            torch.addcmul(z.new_ones(()), z, z, value=-1, out=out)
        case "softsign":
            torch.sub(1, z.abs(), out=out).square_()
        case "relu":
            out.copy_(z > 0)
        case "hard_tanh":
            out.copy_(z.abs() < 1)
        case _:
            out.fill_(1)
    out.mul_(through)


def take_carry(r: Tensor, carry: Tensor, clip: Clip) -> None:
    """R from the readout's share `r` and the carried gradient, in place."""
    if clip == "carry":
        r.add_(carry.clamp_(-CLIP_BOUND, CLIP_BOUND))
    else:
        r.add_(carry)
        if clip == "sum":
            r.clamp_(-CLIP_BOUND, CLIP_BOUND)
