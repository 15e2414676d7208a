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

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.m2rnn.reference import Clip, Nonlinearity, Write
from kernels.m2rnn.torch_block import (
    BLOCK,
    Buffers,
    Recurrence,
    read_out,
    read_rows,
    run_block,
    sweep,
    weight_gradient,
)

KEPT_BYTES = 2**26  # of phi's values: they halve the rebuild, but grow with T; 0 never keeps them


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
    modes = {"nonlinearity": nonlinearity, "write": write, "clip": clip, "resets": resets}
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
    def forward(ctx, q, k, v, f, weight, h, gate_weight, keep, modes: dict):
        T, shape = len(q), h.shape
        r = Recurrence(
            k=k, v=v, f=f, weight=weight, gate_weight=gate_weight, keep=keep,
            buffers=Buffers(h), **modes,
        )  # fmt: skip
        borders, y = h.new_empty(-(-T // BLOCK), *shape), torch.empty_like(v)
        keeps = any(ctx.needs_input_grad) and T * h.nbytes <= KEPT_BYTES
        divides = modes["nonlinearity"] == "norm_clip"
        kept = h.new_empty(T, *shape) if keeps else None
        norms = h.new_empty(T, *shape[:-1], 1) if divides else None
        for i, s in enumerate(_blocks(T)):
            borders[i] = h
            z = r.buffers.take("z", s.stop - s.start, *shape) if kept is None else kept[s]
            norm = None if norms is None else norms[s]
            block = run_block(r, s, h, z, norm, known=False)
            y[s] = read_out(q[s], block.after)
            h = block.after[-1].clone()
        ctx.save_for_backward(q, k, v, f, weight, gate_weight, keep, borders)
        ctx.modes, ctx.kept, ctx.norms = modes, kept, norms
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh):  # type: ignore[override]
        q, k, v, f, weight, gate_weight, keep, borders = ctx.saved_tensors
        dy = dy.contiguous()  # of other strides, a batched product copies every matrix
        r = Recurrence(
            k=k, v=v, f=f, weight=weight, gate_weight=gate_weight, keep=keep,
            buffers=Buffers(borders), **ctx.modes,
        )  # fmt: skip
        dq, dk, dv, df = (torch.empty_like(x) for x in (q, k, v, f))
        dweight = None if weight is None else torch.zeros_like(weight)
        dgate_weight = None if gate_weight is None else torch.zeros_like(gate_weight)
        carry = dh.clone(memory_format=torch.contiguous_format)
        for i, s in reversed(list(enumerate(_blocks(len(q))))):
            known = ctx.kept is not None
            z = ctx.kept[s] if known else r.buffers.take("z", s.stop - s.start, *carry.shape)
            norm = None if ctx.norms is None else ctx.norms[s]
            block = run_block(r, s, borders[i], z, norm, known=known)
            D, da = sweep(r, s, block, q[s], dy[s], carry)
            dq[s] = read_rows(dy[s], block.after)
            dv[s] = read_out(k[s], D)
            if r.write == "delta":
                dk[s] = read_rows(v[s] - read_out(k[s], block.previous), D)
                dk[s] -= read_rows(dv[s], block.previous)
            else:
                dk[s] = read_rows(v[s], D)
            df[s] = da.sum(dim=-1)
            if dgate_weight is not None:
                dgate_weight += (da[..., None] * block.previous).sum(dim=(0, 2, 3))
            if dweight is not None:
                dweight += weight_gradient(block.previous, D, dweight)
        return dq, dk, dv, df, dweight, carry, dgate_weight, None, None


def _blocks(length: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]
