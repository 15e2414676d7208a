"""mamba-ssm's kernels of Mamba-2, as operators that torch.compile can look past.

Put together from its parts, so that what is written and how the state decays are separate inputs,
as `kernels.ssd.ssd_scan` has them; its own entry ties both to one step size. Tested with 2.3.2.
"""

import importlib.util
import sys
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.backends import Signature

CHUNK = 256
RESET_LOG_DECAY = -100.0  # exp of it is 0 in what follows; -inf would be NaN in differences


def why_not(signature: Signature) -> str | None:
    """What rules it out before it is tried."""
    if signature.device.type != "cuda":
        return "its kernels need a GPU"
    if signature.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it has no kernel for {signature.dtype}"
    return None


def ssd_mamba(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Arguments and results as of `kernels.ssd.ssd_scan`; computed in query's dtype."""
    log_decay = log_decay.float()
    if reset is not None:
        log_decay = log_decay.masked_fill(reset[..., None], RESET_LOG_DECAY)
    inputs = [x.to(query.dtype).contiguous() for x in (query, key, value)]
    start = None if state is None else state.float().mT.contiguous()
    output, last = torch.ops.arch_search.mamba_ssd(*inputs, log_decay.contiguous(), start)
    return output.to(value.dtype), last.mT


def _parts() -> Any:
    """Its kernels' module. To be imported, the package wants compiled ones of Mamba-1, too."""
    if "mamba_ssm" not in sys.modules:
        found = importlib.util.find_spec("mamba_ssm")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("No module named 'mamba_ssm'", name="mamba_ssm")
        package = types.ModuleType("mamba_ssm")
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["mamba_ssm"] = package
    from mamba_ssm.ops.triton import ssd_combined  # pyright: ignore[reportMissingImports]

    return ssd_combined


def _in_chunks(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, N) -> sums of log-decays within chunks and a step size of 1, (B, N, chunks, CHUNK)."""
    short = -log_decay.shape[1] % CHUNK
    padded = F.pad(log_decay, (0, 0, 0, short)).transpose(1, 2).unflatten(-1, (-1, CHUNK))
    steps = F.pad(torch.ones_like(log_decay), (0, 0, 0, short)).transpose(1, 2)
    return padded.cumsum(dim=-1), steps.unflatten(-1, (-1, CHUNK)).contiguous()


def _states(
    m: Any, key: Tensor, value: Tensor, steps: Tensor, total: Tensor, state: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """The state before each chunk (B, chunks, N, V, K), and the last."""
    K = key.shape[-1]
    written = m._chunk_state_fwd(key, value, steps, total, states_in_fp32=True)
    start = None if state is None else state.flatten(-2)
    before, last = m._state_passing_fwd(
        written.flatten(-2), total[..., -1], initial_states=start, chunk_size=CHUNK, **options
    )
    return before.unflatten(-1, (-1, K)), last.unflatten(-1, (-1, K))


def _forward(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Any
) -> tuple[Any, ...]:
    m = _parts()
    total, steps = _in_chunks(log_decay)
    before, last = _states(m, key, value, steps, total, state, out_dtype=query.dtype)
    scores = m._bmm_chunk_fwd(query, key, CHUNK, output_dtype=torch.float32)
    output, _ = m._chunk_scan_fwd(scores, value, steps, total, query, before)
    return output.contiguous(), last.float().contiguous()


def _backward(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Any,
    grad_output: Tensor, grad_last: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    m, groups, K = _parts(), key.shape[2], key.shape[-1]
    dout = grad_output.contiguous()
    total, steps = _in_chunks(log_decay)
    scores = m._bmm_chunk_fwd(query, key, CHUNK, output_dtype=torch.float32)
    before, _ = _states(m, key, value, steps, total, state)
    dstates = m._chunk_scan_bwd_dstates(query, total, dout, dtype=before.dtype)
    dstates, dtotal, dstate, before = m._state_passing_bwd(
        before.flatten(-2), total[..., -1], dstates.flatten(-2),
        dfinal_states=grad_last.flatten(-2), has_initial_states=state is not None,
        dstates_dtype=value.dtype, states_dtype=value.dtype, chunk_size=CHUNK,
    )  # fmt: skip
    before, dstates = before.unflatten(-1, (-1, K)), dstates.unflatten(-1, (-1, K))
    dvalue, _, _ = m._chunk_scan_chunk_state_bwd_dx(value, steps, total, key, scores, dout, dstates)
    dkey_part, dlog_next = m._chunk_state_bwd_db(
        value, steps, total, dstates, B=key, ngroups=groups
    )
    dquery_part, dlog_before = m._chunk_scan_bwd_dC(
        before.to(value.dtype), total, dout, C=query, ngroups=groups
    )
    dscores = m._chunk_scan_bwd_dcb(value, steps, total, dout, ngroups=groups).to(scores.dtype)
    dkey, dquery = torch.empty_like(key), torch.empty_like(query)
    m._bmm_chunk_bwd(query, dscores, residual=dkey_part, out=dkey)
    m._bmm_chunk_bwd(key, dscores.mT, residual=dquery_part, out=dquery)
    dlog_before[..., -1] += dtotal
    dlog = m._chunk_scan_bwd_ddAcs_stable(value, steps, total, dout, scores)
    dlog = dlog + dlog_next + dlog_before.flip(-1).cumsum(-1).flip(-1)
    dlog = dlog.flatten(2)[..., : log_decay.shape[1]].transpose(1, 2).float().contiguous()
    kept = query.new_empty(0, dtype=torch.float32)
    if dstate is not None:
        kept = dstate.unflatten(-1, (-1, K)).float().contiguous()
    return dquery, dkey, dvalue.contiguous(), dlog, kept


_forward_op = torch.library.custom_op(
    "arch_search::mamba_ssd",
    _forward,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor log_decay, Tensor? state) "
    "-> (Tensor, Tensor)",
)
_backward_op = torch.library.custom_op(
    "arch_search::mamba_ssd_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor log_decay, Tensor? state, "
    "Tensor grad_output, Tensor grad_last) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_forward_op.register_fake
def _(query, key, value, log_decay, state):
    B, _, N, V = value.shape
    last = value.new_empty(B, N, V, key.shape[-1], dtype=torch.float32)
    return torch.empty_like(value, memory_format=torch.contiguous_format), last


@_backward_op.register_fake
def _(query, key, value, log_decay, state, grad_output, grad_last):
    kept = query.new_empty(0, dtype=torch.float32) if state is None else torch.empty_like(state)
    return (*(torch.empty_like(x) for x in (query, key, value, log_decay)), kept)


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_output: Tensor, grad_last: Tensor):
    *grads, dstate = torch.ops.arch_search.mamba_ssd_backward(
        *ctx.saved_tensors, grad_output, grad_last
    )
    return (*grads, dstate if ctx.saved_tensors[-1] is not None else None)


torch.library.register_autograd("arch_search::mamba_ssd", _differentiate, setup_context=_keep)
