"""The M²RNN scan in torch with a hand-written backward: the CPU's default.

Only the state at every sixteenth step is kept, and phi's values while they fit in `KEPT_BYTES`; the
backward pass rebuilds a block of steps from its border and sweeps it in reverse. What is not serial
(the outer products, the readout, the reductions of the backward pass) is done for a whole block at
once, so that a step costs three or four small operations. Heads lead the layout (T, N, B, K, V):
H W is then one batched product of N matrices.

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

KEPT_BYTES = 2**26  # of phi's values: they halve the rebuild, but grow with T; 0 never keeps them


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
        T = v.shape[0]
        borders = h.new_empty(-(-T // BLOCK), *h.shape)
        keeps_z = any(ctx.needs_input_grad) and T * h.nbytes <= KEPT_BYTES
        y, kept = torch.empty_like(v), []
        for i, s in enumerate(_blocks(T)):
            borders[i] = h
            block = _run_block(k[s], v[s], f[s], weight, h, gate_weight, keep, modes, s.start)
            y[s] = read_out(q[s], block.after)
            h = block.after[-1].clone()
            if keeps_z:
                kept.append((block.z, block.norm))
        ctx.save_for_backward(q, k, v, f, weight, gate_weight, keep, borders)
        ctx.modes, ctx.kept = modes, kept
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh):  # type: ignore[override]
        q, k, v, f, weight, gate_weight, keep, borders = ctx.saved_tensors
        dy = dy.contiguous()  # of other strides, a batched product copies every matrix
        dq, dk, dv, df = (torch.empty_like(x) for x in (q, k, v, f))
        dweight = None if weight is None else torch.zeros_like(weight)
        dgate_weight = None if gate_weight is None else torch.zeros_like(gate_weight)
        carry = dh.clone(memory_format=torch.contiguous_format)
        for i, s in reversed(list(enumerate(_blocks(q.shape[0])))):
            block = _run_block(
                k[s], v[s], f[s], weight, borders[i], gate_weight, keep, ctx.modes, s.start,
                ctx.kept[i] if ctx.kept else None,
            )  # fmt: skip
            R, D, da = _sweep(
                block, q[s], k[s], dy[s], weight, gate_weight, keep, carry, ctx.modes, s.start
            )
            dq[s] = read_rows(dy[s], block.after)
            dv[s] = read_out(k[s], D)
            if ctx.modes.write == "delta":
                dk[s] = read_rows(v[s] - read_out(k[s], block.previous), D)
                dk[s] -= read_rows(dv[s], block.previous)
            else:
                dk[s] = read_rows(v[s], D)
            if da is None:
                df[s] = (R * (block.previous - block.z)).flatten(-2).sum(dim=-1)
            else:
                df[s] = da.sum(dim=(-2, -1))
                assert dgate_weight is not None
                dgate_weight += (da * block.previous).sum(dim=(0, 2, 3))
            if dweight is not None:
                dweight += _weight_gradient(block.previous, D, dweight)
        return dq, dk, dv, df, dweight, carry, dgate_weight, None, None


def _blocks(length: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def read_out(x: Tensor, state: Tensor) -> Tensor:
    """stateᵀ x: (…, K), (…, K, V) -> (…, V)."""
    return (x[..., None, :] @ state)[..., 0, :]


def read_rows(y: Tensor, state: Tensor) -> Tensor:
    """state y: (…, V), (…, K, V) -> (…, K). As a row times the transpose: five times the speed."""
    return (y[..., None, :] @ state.mT)[..., 0, :]


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


def _run_block(
    k, v, f, weight, h, gate_weight, keep, modes: Modes, start: int, kept: tuple | None = None
) -> Block:
    """The recurrence over one block of steps from the state `h` (N, B, K, V) at its border.

    `kept` holds phi's values and norm_clip's divisors if an earlier pass computed them.
    """
    C, N, B, K = k.shape
    shape = (C, N, B, K, v.shape[3])
    norm = h.new_empty(*shape[:-1], 1) if modes.nonlinearity == "norm_clip" else None
    z, norm = (outer(k, v), norm) if kept is None else kept
    states = h.new_empty(C + 1, *shape[1:])
    states[0] = h
    gate = f[..., None, None] if gate_weight is None else h.new_empty(*shape[:-1], 1)
    resets = any(modes.resets[start : start + C])
    previous = h.new_empty(shape) if resets else states[:-1]
    for t in range(C):
        if resets:
            torch.mul(states[t], keep[start + t], out=previous[t])
        past = previous[t]
        if kept is None:
            if modes.write == "delta":
                recalled = read_out(k[t], past)
                z[t].addcmul_(k[t][..., :, None], recalled[..., None, :], value=-1)
            _add_mixed(z[t], past, weight)
            _apply_phi(z[t], modes.nonlinearity, None if norm is None else norm[t])
        if gate_weight is not None:
            torch.matmul(past, gate_weight[:, None, :, None], out=gate[t])
            gate[t].add_(f[t][..., None, None]).sigmoid_()
        torch.lerp(z[t], past, gate[t].expand_as(past), out=states[t + 1])
    return Block(previous=previous, after=states[1:], z=z, gate=gate, norm=norm)


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


def _slope(z: Tensor, name: Nonlinearity) -> Tensor | None:
    """phi' from phi's value where it acts element by element; None where it is 1 or does not."""
    match name:
        case "tanh":
            return torch.addcmul(z.new_ones(()), z, z, value=-1)
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
            assert gate_weight is not None
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
