"""The M²RNN scan in plain torch with the operands of its matrix products rounded, as on the GPU.

What of a kernel's error is more than this emulation's does not come from bfloat16 operands. The
sums and the state, gate and carried gradient are in the dtype of the case, which may be float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.m2rnn.checking import NAMES, Case
from kernels.m2rnn.reference import apply_nonlinearity
from kernels.m2rnn.scan import expand_heads

BORDER = 16  # steps between kept states


def to_bfloat16(x: Tensor) -> Tensor:
    """x rounded to bfloat16, in its own dtype."""
    return x.bfloat16().to(x.dtype)


def rounded_scan(
    case: Case, rounded: Callable[[Tensor], Tensor] = to_bfloat16
) -> dict[str, Tensor]:
    """Output, last state and every gradient, named as by `checking.run`. Without a state gate and
    the delta write."""
    N = case.grad_last.shape[1]
    given = {name: case.tensors[name] for name in NAMES}
    q, k, v, f = (expand_heads(x, N, 2) for name in NAMES[:4] if (x := given[name]) is not None)
    weight = None if given["weight"] is None else expand_heads(given["weight"], N, 0)
    state = torch.zeros_like(case.grad_last) if given["state"] is None else given["state"]
    scan = _Scan(case, weight, rounded)
    y, last, borders = scan.forward(q, k, v, f, state)
    grads = scan.backward(q, k, v, f, borders)
    found = {"output": y, "last_state": last}
    for name, grad in zip(NAMES, grads, strict=False):
        x = given[name]
        if x is not None and grad is not None:
            if name != "state":  # heads that share sum their shares
                dim = 0 if name == "weight" else 2
                grad = grad.unflatten(dim, (x.shape[dim], -1)).sum(dim + 1)
            found[f"d_{name}"] = grad
    return found


class _Scan:
    def __init__(self, case: Case, weight: Tensor | None, rounded: Callable[[Tensor], Tensor]):
        self.case, self.weight, self.rounded = case, weight, rounded
        if weight is not None and weight.ndim == 3:  # the identity's part is not rounded
            eye = torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
            self.rest = rounded(weight - eye)

    def phi(self, h: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = k[..., :, None] * v[..., None, :]
        if self.weight is None:
            x = x + h
        elif self.weight.ndim == 2:
            x = x + h * self.weight[:, None]
        else:
            x = x + h + self.rounded(h) @ self.rest
        return apply_nonlinearity(x, self.case.nonlinearity)

    def kept(self, h: Tensor, t: int) -> Tensor:
        if self.case.reset is None:
            return h
        return torch.where(self.case.reset[:, t, None, None, None], 0.0, h)

    def run(self, h, t, k, v, f):
        """H_{t-1} after a reset, and H_t."""
        h = self.kept(h, t)
        z = self.phi(h, k[:, t], v[:, t])
        return h, z + f[:, t, :, None, None] * (h - z)

    def forward(self, q, k, v, f, h):
        outputs, borders = [], []
        for t in range(q.shape[1]):
            if t % BORDER == 0:
                borders.append(self.rounded(h))
            _, h = self.run(h, t, k, v, f)
            outputs.append(torch.einsum("bnk,bnkv->bnv", q[:, t], self.rounded(h)))
        return torch.stack(outputs, 1), h, borders

    def backward(self, q, k, v, f, borders):
        T, c = q.shape[1], self.case.grad_last
        dq, dk, dv, df = (torch.zeros_like(x) for x in (q, k, v, f))
        dw = None if self.weight is None else torch.zeros_like(self.weight)
        for chunk in reversed(range(len(borders))):
            steps, h, before, after = (
                range(chunk * BORDER, min(T, (chunk + 1) * BORDER)),
                None,
                {},
                {},
            )
            h = borders[chunk]
            for t in steps:
                before[t], h = self.run(h, t, k, v, f)
                after[t] = h
            for t in reversed(steps):
                u = self.case.grad_output[:, t]
                dq[:, t] = torch.einsum("bnkv,bnv->bnk", self.rounded(after[t]), u)
                c = self._sweep(c, self.rounded(before[t]), t, q, k, v, f, u, dk, dv, df, dw)
        return dq, dk, dv, df, dw, c

    def _sweep(self, c, h, t, q, k, v, f, u, dk, dv, df, dw):
        clip, gate = self.case.clip, f[:, t, :, None, None]
        z = self.phi(h, k[:, t], v[:, t])
        grad = (c.clamp(-1, 1) if clip == "carry" else c) + q[:, t, :, :, None] * u[:, :, None]
        grad = grad.clamp(-1, 1) if clip == "sum" else grad
        df[:, t] = (grad * (h - z)).sum((2, 3))
        d = (1 - gate) * _slope(z, self.case.nonlinearity) * grad
        operand = self.rounded(d)
        dk[:, t] = torch.einsum("bnkv,bnv->bnk", operand, v[:, t])
        dv[:, t] = torch.einsum("bnkv,bnk->bnv", operand, k[:, t])
        c = gate * grad
        if self.weight is None:
            c = c + d
        elif self.weight.ndim == 2:
            dw += (h * d).sum((0, 2))
            c = c + d * self.weight[:, None]
        else:
            dw += (h.mT @ operand).sum(0)
            c = c + d + operand @ self.rest.mT
        return self.kept(c, t)


def _slope(z: Tensor, phi: str) -> Tensor:
    """phi'(x) from z = phi(x)."""
    return {
        "tanh": lambda: 1 - z * z,
        "identity": lambda: torch.ones_like(z),
        "softsign": lambda: (1 - z.abs()) ** 2,
        "relu": lambda: (z > 0).to(z.dtype),
        "hard_tanh": lambda: (z.abs() < 1).to(z.dtype),
    }[phi]()
