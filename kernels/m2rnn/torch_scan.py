"""The M²RNN scan in torch with a hand-written backward: the CPU's default.

Only the state at every sixteenth step is kept; the backward pass rebuilds a block of steps from its
border and sweeps it in reverse. What is not serial (the outer products, the readout, the reductions
of the backward pass) is done for a whole block at once, so that a step costs three or four small
operations. Heads lead the layout (T, N, B, K, V): H W is then one batched product of N matrices.

With u_t = dL/dy_t and C the gradient carried from later steps (arXiv 2603.14360, re-derived):
R = C + q uᵀ;  D = phi'((1 - f) R);  C' = f R + D Wᵀ;  df = <R, H_prev - Z>;  dW = sum H_prevᵀ D;
dk = D v;  dv = Dᵀ k;  dq = H u.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.m2rnn.reference import CLIP_BOUND, Clip, Nonlinearity, Write

BLOCK = 16  # steps between kept states: about sqrt(T) for the lengths that a CPU trains on


@dataclass(frozen=True, kw_only=True, slots=True)
class Modes:
    """What varies in the recurrence apart from its tensors. `resets[t]`: some sequence resets."""

    nonlinearity: Nonlinearity = "tanh"
    write: Write = "outer"
    clip: Clip = "none"
    resets: list[bool] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Block:
    """What one block of steps leaves for its reverse sweep; leading axis time."""

    previous: Tensor  # H_{t-1} after the reset, (C, N, B, K, V)
    after: Tensor  # H_t
    z: Tensor  # phi's value
    gate: Tensor  # f_t, (C, N, B, 1 or K, 1)
    written: Tensor  # v_t, or v_t - H_{t-1}ᵀ k_t, (C, N, B, V)
    norm: Tensor | None  # norm_clip's divisor, (C, N, B, K, 1)


def m2rnn_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor | None,
    state: Tensor,
    *,
    gate_weight: Tensor | None = None,
    nonlinearity: Nonlinearity = "tanh",
    write: Write = "outer",
    clip: Clip = "none",
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan over time with every head spelled out; the arguments of `reference.m2rnn_loop`."""
    resets = [] if reset is None else reset.any(dim=0).tolist()
    modes = Modes(nonlinearity=nonlinearity, write=write, clip=clip, resets=resets)
    keep = None if reset is None else (~reset).to(state.dtype).T[:, None, :, None, None]
    y, last = _Scan.apply(
        query.permute(1, 2, 0, 3).contiguous(),
        key.permute(1, 2, 0, 3).contiguous(),
        value.permute(1, 2, 0, 3).contiguous(),
        forget.permute(1, 2, 0).contiguous(),
        weight,
        state.transpose(0, 1).contiguous(),
        gate_weight,
        keep,
        modes,
    )  # type: ignore[misc]
    return y.permute(2, 0, 1, 3), last.transpose(0, 1)


class _Scan(torch.autograd.Function):
    """q, k (T, N, B, K), v (T, N, B, V), f (T, N, B), h (N, B, K, V) -> y (T, N, B, V), h."""

    @staticmethod
    def forward(ctx, q, k, v, f, weight, h, gate_weight, keep, modes: Modes):
        T, N, B, V = v.shape
        borders = h.new_empty(-(-T // BLOCK), *h.shape)
        y = v.new_empty(T, N, B, V)
        for i, start in enumerate(range(0, T, BLOCK)):
            borders[i] = h
            s = slice(start, min(start + BLOCK, T))
            block = _run_block(k[s], v[s], f[s], weight, h, gate_weight, keep, modes, start)
            y[s] = read_out(q[s], block.after)
            h = block.after[-1].clone()
        ctx.save_for_backward(q, k, v, f, weight, gate_weight, keep, borders)
        ctx.modes = modes
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh):  # type: ignore[override]
        q, k, v, f, weight, gate_weight, keep, borders = ctx.saved_tensors
        T = q.shape[0]
        dq, dk, dv, df = (torch.empty_like(x) for x in (q, k, v, f))
        dweight = None if weight is None else torch.zeros_like(weight)
        dgate_weight = None if gate_weight is None else torch.zeros_like(gate_weight)
        carry = dh.clone(memory_format=torch.contiguous_format)
        for i in reversed(range(borders.shape[0])):
            start = i * BLOCK
            s = slice(start, min(start + BLOCK, T))
            block = _run_block(
                k[s], v[s], f[s], weight, borders[i], gate_weight, keep, ctx.modes, start
            )
            R, D, da = _sweep(
                block, q[s], k[s], dy[s], weight, gate_weight, keep, carry, ctx.modes, start
            )
            dq[s] = (block.after @ dy[s][..., None])[..., 0]
            dv[s] = read_out(k[s], D)
            dk[s] = (D @ block.written[..., None])[..., 0]
            if ctx.modes.write == "delta":
                dk[s] -= (block.previous @ dv[s][..., None])[..., 0]
            if da is None:
                df[s] = (R * (block.previous - block.z)).sum(dim=(-2, -1))
            else:
                df[s] = da.sum(dim=(-2, -1))
                assert dgate_weight is not None
                dgate_weight += (da * block.previous).sum(dim=(0, 2, 3))
            if dweight is not None:
                dweight += _weight_gradient(block.previous, D, dweight)
        return dq, dk, dv, df, dweight, carry, dgate_weight, None, None


def read_out(x: Tensor, state: Tensor) -> Tensor:
    """stateᵀ x: (…, K), (…, K, V) -> (…, V)."""
    return (x[..., None, :] @ state)[..., 0, :]


def outer(x: Tensor, y: Tensor) -> Tensor:
    """x yᵀ: (…, K), (…, V) -> (…, K, V), contiguous: a plain product may come out transposed."""
    out = x.new_empty(*x.shape, y.shape[-1])
    return torch.mul(x[..., :, None], y[..., None, :], out=out)


def _weight_gradient(previous: Tensor, D: Tensor, like: Tensor) -> Tensor:
    """sum over time and batch of H_{t-1}ᵀ D, for a dense (N, V, V) or diagonal (N, V) weight."""
    if like.ndim == 2:
        return (previous * D).sum(dim=(0, 2, 3))
    h, d = previous.flatten(2, 3), D.flatten(2, 3)  # (C, N, BK, V)
    return (h.mT @ d).sum(dim=0)


def _run_block(k, v, f, weight, h, gate_weight, keep, modes: Modes, start: int) -> Block:
    """The recurrence over one block of steps from the state `h` (N, B, K, V) at its border."""
    C, N, B, K = k.shape
    shape = (C, N, B, K, v.shape[3])
    z = outer(k, v)
    states = h.new_empty(C + 1, *shape[1:])
    states[0] = h
    delta, fixed_gate = modes.write == "delta", gate_weight is None
    written = v.clone() if delta else v
    gate = f[..., None, None] if fixed_gate else h.new_empty(*shape[:-1], 1)
    norm = h.new_empty(*shape[:-1], 1) if modes.nonlinearity == "norm_clip" else None
    resets = any(modes.resets[start : start + C])
    previous = h.new_empty(shape) if resets else states[:-1]
    for t in range(C):
        if resets:
            torch.mul(states[t], keep[start + t], out=previous[t])
        past = previous[t]
        if delta:
            recalled = read_out(k[t], past)
            written[t] -= recalled
            z[t].addcmul_(k[t][..., :, None], recalled[..., None, :], value=-1)
        _add_mixed(z[t], past, weight)
        _apply_phi(z[t], modes.nonlinearity, None if norm is None else norm[t])
        if not fixed_gate:
            torch.matmul(past, gate_weight[:, None, :, None], out=gate[t])
            gate[t].add_(f[t][..., None, None]).sigmoid_()
        torch.lerp(z[t], past, gate[t].expand_as(past), out=states[t + 1])
    return Block(previous=previous, after=states[1:], z=z, gate=gate, written=written, norm=norm)


def _add_mixed(z: Tensor, h: Tensor, weight: Tensor | None) -> None:
    """z += h W in place, for (N, B, K, V)."""
    if weight is None:
        z.add_(h)
    elif weight.ndim == 2:
        z.addcmul_(h, weight[:, None, None, :])
    else:
        N, B, K, V = z.shape
        z.view(N, B * K, V).baddbmm_(h.view(N, B * K, V), weight)


def _apply_phi(z: Tensor, name: Nonlinearity, norm: Tensor | None) -> None:
    """phi in place; `norm` receives norm_clip's divisor."""
    match name:
        case "tanh":
            z.tanh_()
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


def _slope(z: Tensor, name: Nonlinearity) -> Tensor | None:
    """phi' from phi's value where it acts element by element; None where it is 1 or does not."""
    match name:
        case "tanh":
            return 1 - z * z
        case "softsign":
            return (1 - z.abs()).square_()
        case "relu":
            return (z > 0).to(z.dtype)
        case "hard_tanh":
            return (z.abs() < 1).to(z.dtype)
    return None


def _sweep(
    block: Block, q, k, dy, weight, gate_weight, keep, carry: Tensor, modes: Modes, start: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sweep one block in reverse, updating `carry` (N, B, K, V) in place.

    Returns:
        R = dL/dH_t and D = dL/d(pre-activation), both (C, N, B, K, V), and for the state gate
        dL/d(its pre-activation), (C, N, B, K, 1).
    """
    R = outer(q, dy)
    through = 1 - block.gate
    slope = _slope(block.z, modes.nonlinearity)
    D = through.expand_as(R).contiguous() if slope is None else slope.mul_(through)
    difference = None if gate_weight is None else block.previous - block.z
    da = None if gate_weight is None else torch.empty_like(block.gate)
    transposed = weight if weight is None or weight.ndim == 2 else weight.mT
    for t in reversed(range(R.shape[0])):
        r, d = R[t], D[t]
        _take_carry(r, carry, modes.clip)
        d.mul_(r)
        if block.norm is not None:
            n, z = block.norm[t], block.z[t]
            d.addcmul_(z, (z * d).sum(-1, keepdim=True) * (n > 1), value=-1).div_(n)
        torch.mul(r, block.gate[t], out=carry)
        _add_mixed(carry, d, transposed)
        if modes.write == "delta":
            carry.addcmul_(k[t][..., :, None], read_out(k[t], d)[..., None, :], value=-1)
        if da is not None and difference is not None:
            g = block.gate[t]
            torch.sum(r * difference[t], dim=-1, keepdim=True, out=da[t])
            da[t].mul_(g * (1 - g))
            carry.addcmul_(da[t], gate_weight[:, None, None, :])
        if modes.resets and modes.resets[start + t]:
            carry.mul_(keep[start + t])
    return R, D, da


def _take_carry(r: Tensor, carry: Tensor, clip: Clip) -> None:
    """R from the readout's share `r` and the carried gradient, in place."""
    if clip == "carry":
        r.add_(carry.clamp_(-CLIP_BOUND, CLIP_BOUND))
    else:
        r.add_(carry)
        if clip == "sum":
            r.clamp_(-CLIP_BOUND, CLIP_BOUND)
