"""Cross-entropy of a linear head in pieces, so that the full logits never exist.

Gradients are made in the forward pass, while a piece's logits are there: they take its place. fla's
function of this kind multiplies in float32 for the weight's gradient; here the factors keep their
precision and the sums alone are float32.
"""

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.backends import Candidate, Signature, choose
from kernels.probing import disagreement

Backend = Literal["auto", "full", "chunked", "triton"]

IGNORED = -100  # a target that counts for nothing
FULL_ELEMENTS = 2**26  # logits that `auto` computes at once off the GPU: 256 MiB
PIECE_ELEMENTS = {"cpu": 2**24, "cuda": 2**28}  # logits of a piece
ROWS = 128  # pieces are multiples of it


def linear_cross_entropy(
    features: Tensor, weight: Tensor, targets: Tensor, *, backend: Backend = "auto"
) -> Tensor:
    """Sum over tokens of log sum_u exp(x·w_u) - x·w_target, in nats; 0 where a target is IGNORED.

    Args:
        features: x, (..., D).   weight: (U, D).   targets: (...) int64.
        backend: "full" has all logits at once; "chunked" and "triton" (on a GPU) a piece at a time;
            "auto" takes triton where it proves right, else full while the logits are few.
    Returns:
        a float32 scalar (float64 for float64 features).
    Raises:
        ValueError: the backend's name is wrong.
        BackendUnavailable: a backend asked for by name did not prove right here.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    x, y = features.flatten(0, -2), targets.flatten()
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    few = len(x) * len(weight) <= FULL_ELEMENTS
    signature = Signature(
        device=x.device, dtype=dtype, sizes=(("U", len(weight)), ("D", x.shape[1])),
        batch=1, length=len(x),
    )  # fmt: skip
    fast = (Candidate(name="triton", probe=_probe),)
    plain = "full" if few and kind == "cpu" else "chunked"
    chosen = choose("cross_entropy", backend, signature, fast=fast, plain=plain)
    return _run(x, weight, y, dtype, cast(Backend, chosen))


def _run(x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, backend: Backend):
    if backend == "full":
        logits = F.linear(x, weight)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(wide, targets, reduction="sum", ignore_index=IGNORED)
    with torch.autocast(x.device.type, enabled=False):
        return cast(
            Tensor,
            _InPieces.apply(x.to(dtype), weight.to(dtype), targets, backend == "triton"),
        )


def _probe(signature: Signature) -> str | None:
    if signature.device.type != "cuda":
        return "it needs a GPU"
    if signature.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it has no kernel for {signature.dtype}"
    sizes = dict(signature.sizes)
    generator = torch.Generator(signature.device).manual_seed(0)
    rows = min(signature.length, 2 * ROWS + 1)

    def normal(*shape: int) -> Tensor:
        x = torch.randn(shape, generator=generator, device=signature.device)
        return x.to(signature.dtype)

    inputs = {"x": normal(1, rows, sizes["D"]), "weight": 0.05 * normal(sizes["U"], sizes["D"])}
    targets = torch.randint(
        sizes["U"], (rows,), generator=generator, device=signature.device
    ).index_fill(0, torch.arange(0, rows, 7, device=signature.device), IGNORED)
    small = Signature(
        device=signature.device, dtype=signature.dtype, sizes=signature.sizes, batch=1, length=1
    )
    return disagreement(
        lambda x, weight: [_run(x[0], weight, targets, x.dtype, "triton")[None, None]],
        lambda x, weight: [_run(x[0], weight, targets, x.dtype, "full")[None, None]],
        inputs, small, shared=frozenset(inputs),
    )  # fmt: skip


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, with_triton: bool) -> Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        losses = torch.empty(len(x), dtype=wide, device=x.device)
        needs = x.requires_grad or weight.requires_grad
        dx = torch.empty_like(x) if needs else None
        dw = torch.zeros_like(weight, dtype=wide) if needs else None
        for start in range(0, len(x), rows := _rows(len(x), len(weight), x.device.type)):
            piece = slice(start, start + rows)
            logits = F.linear(x[piece], weight)
            gradient = _rowwise(logits, targets[piece], losses[piece], with_triton)
            if dx is not None and dw is not None:
                torch.mm(gradient, weight, out=dx[piece])
                _accumulate(dw, gradient.T, x[piece])
        if needs:
            ctx.save_for_backward(dx, dw)
            ctx.dtype = weight.dtype
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        dx, dw = ctx.saved_tensors
        return dx * grads[0].to(dx.dtype), dw * grads[0], None, None


def _rows(length: int, vocabulary: int, kind: str) -> int:
    """The rows of a piece: equal pieces within the limit, in whole blocks of rows."""
    most = max(PIECE_ELEMENTS.get(kind, PIECE_ELEMENTS["cpu"]) // vocabulary // ROWS, 1) * ROWS
    pieces = -(-length // most)
    return min(-(-length // (pieces * ROWS)) * ROWS, length)


def _rowwise(logits: Tensor, targets: Tensor, losses: Tensor, with_triton: bool) -> Tensor:
    """Write each row's loss; return softmax(logits) less one at the target, in their memory."""
    if with_triton:
        from kernels.cross_entropy.triton_rows import softmax_rows

        softmax_rows(logits, targets, losses)
        return logits
    wide = logits.to(losses.dtype)
    counted = targets != IGNORED
    at = torch.where(counted, targets, 0)[:, None]
    total = wide.logsumexp(dim=-1)
    losses.copy_((total - wide.gather(1, at)[:, 0]) * counted)
    gradient = wide.sub_(total[:, None]).exp_()
    gradient.scatter_add_(1, at, gradient.new_full((), -1.0).expand_as(at))
    return gradient.mul_(counted[:, None]).to(logits.dtype)


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, summed in total's precision."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.device.type == "cuda":
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.add_(a.to(total.dtype) @ b.to(total.dtype))
