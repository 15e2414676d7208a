"""The Triton backend of the RNN, GRU and LSTM scans: what it supports, launches, gradients.

Two torch.library operators for the three cells, so that torch.compile keeps the graph whole.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# (kernel arguments are typed for the device)
import torch
import triton
from torch import Tensor

from kernels.m2rnn.reference import Clip
from kernels.m2rnn.triton_scan import interpreted
from kernels.rnn import gluon_gru, gluon_lstm, gluon_rnn, triton_gru, triton_lstm, triton_rnn

ROWS = 16  # sequences of one program: the rows of a matrix instruction
MAX_VALUE, MAX_FLOAT32_LSTM = 64, 32  # what fits in the registers of eight warps
PLAIN = {"rnn": triton_rnn, "gru": triton_gru, "lstm": triton_lstm}
FAST = {"rnn": gluon_rnn, "gru": gluon_gru, "lstm": gluon_lstm}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TRITON = tuple(int(x) for x in triton.__version__.split(".")[:2])
# seen on 3.9.0 (an assertion in LLVM's SLP vectoriser ends the process), not on 3.6 or 3.7.1
BREAKS_FLOAT32_LSTM = not interpreted() and TRITON > (3, 7)
INPUTS = {"rnn": 1, "gru": 3, "lstm": 1}  # over time; then weights, then states
WEIGHTS = {"rnn": 1, "gru": 3, "lstm": 1}


def unsupported(kernel: str, *tensors: Tensor, clip: Clip, reset: Tensor | None) -> str | None:
    """Why the Triton kernels cannot run this, or None if they can."""
    del clip, reset
    x, V = tensors[0], tensors[-1].shape[-1]
    most = MAX_FLOAT32_LSTM if kernel == "lstm" and x.dtype == torch.float32 else MAX_VALUE
    if x.device.type != ("cpu" if interpreted() else "cuda"):
        return f"the tensors are on {x.device.type}, and the kernels run on CUDA"
    if kernel == "lstm" and x.dtype == torch.float32 and BREAKS_FLOAT32_LSTM:
        return f"Triton {triton.__version__}'s compiler aborts on the float32 LSTM; 3.7.1 does not"
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            return f"a tensor is {tensor.dtype}; the kernels take float32, bfloat16 and float16"
    if most < V:
        return f"V={V}; the {kernel} kernel reaches to V={most}"
    return None


def rnn_triton(
    x: Tensor, weight: Tensor, state: Tensor, *, clip: Clip, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The arguments and results of `reference.rnn_loop`; the state is kept in float32."""
    y, h = _run("rnn", [x, weight, state], clip, reset)
    return y, h


def gru_triton(
    x: Tensor,
    forget: Tensor,
    recall: Tensor,
    weight: Tensor,
    forget_weight: Tensor,
    recall_weight: Tensor,
    state: Tensor,
    *,
    clip: Clip,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The arguments and results of `reference.gru_loop`; the state is kept in float32."""
    tensors = [x, forget, recall, weight, forget_weight, recall_weight, state]
    y, h = _run("gru", tensors, clip, reset)
    return y, h


def lstm_triton(
    gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, *, clip: Clip, reset: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments and results of `reference.lstm_loop`; the states are kept in float32."""
    y, h, c = _run("lstm", [gates, weight, hidden, cell], clip, reset)
    return y, h, c


def _run(kernel: str, tensors: list[Tensor], clip: Clip, reset: Tensor | None) -> list[Tensor]:
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        tensors = [x.to(dtype) for x in tensors[: INPUTS[kernel]]] + tensors[INPUTS[kernel] :]
    keep = None if reset is None else (~reset).to(torch.float32)
    outputs = _forward(tensors, keep, kernel, clip)
    return outputs[:2] if kernel != "lstm" else [outputs[0], outputs[1], outputs[2]]


def _sizes(tensors: list[Tensor]) -> tuple[int, int, int, int]:
    """B, T, N, V from the inputs and the last state."""
    (B, T, N), V = tensors[0].shape[:3], tensors[-1].shape[-1]
    return B, T, N, V


def _kernel(kernel: str, way: str, dtype: torch.dtype, V: int):
    """The fast kernel if it covers the case without spilling, else the plain one."""
    reaches = 32 if kernel == "rnn" else 16
    fast = dtype == torch.bfloat16 and V in (16, reaches) and not interpreted()
    return getattr((FAST if fast else PLAIN)[kernel], f"{kernel}_{way}"), fast


def _options(tensors: list[Tensor], V: int, keep: Tensor | None, fast: bool) -> dict:
    if fast:
        return {"V": V, "RESET": keep is not None, "num_warps": 1}
    exact = tensors[0].dtype == torch.float32 or interpreted()
    operand = "emulated" if interpreted() else "bfloat16"
    BV = max(16, triton.next_power_of_2(V))
    return {
        "V": V, "BB": ROWS, "BV": BV, "RESET": keep is not None, "PRECISE": exact,
        "OPERAND": "float32" if tensors[0].dtype == torch.float32 else operand,
        "num_warps": plain_warps(BV, float32=tensors[0].dtype == torch.float32),
        "num_stages": 1,
    }  # fmt: skip


def plain_warps(BV: int, *, float32: bool) -> int:
    """Warps that hold a plain kernel's weights of width BV, and sums of their gradients."""
    return BV // 16 * (2 if float32 or BV == 64 else 1)


@torch.library.custom_op("arch_search::rnn_forward", mutates_args=())
def _forward(tensors: list[Tensor], keep: Tensor | None, kernel: str, clip: str) -> list[Tensor]:
    """Every output, the last state or states (float32) and, for the LSTM, every cell (float32)."""
    tensors = [x.contiguous() for x in tensors]
    B, T, N, V = _sizes(tensors)
    x = tensors[0]
    y = x.new_empty(B, T, N, V)
    last = x.new_empty(B, N, V, dtype=torch.float32)
    results = [y, last]
    pointers = [y, last]
    if kernel == "lstm":
        every_cell = x.new_empty(B, T, N, V, dtype=torch.float32)
        results = [y, last, torch.empty_like(last), every_cell]
        pointers = [y, every_cell, last, results[2]]
    launch, fast = _kernel(kernel, "forward", x.dtype, V)
    with torch.cuda.device_of(x):
        launch[(N, triton.cdiv(B, ROWS))](
            *tensors, last if keep is None else keep.contiguous(), *pointers, B, T, N,
            **_options(tensors, V, keep, fast),
        )  # fmt: skip
    return results


@_forward.register_fake
def _(tensors, keep, kernel, clip):
    B, T, N, V = _sizes(tensors)
    x = tensors[0]
    lasts = [x.new_empty(B, N, V, dtype=torch.float32) for _ in range(2 if kernel == "lstm" else 1)]
    every = [x.new_empty(B, T, N, V, dtype=torch.float32)] if kernel == "lstm" else []
    return [x.new_empty(B, T, N, V), *lasts, *every]


@torch.library.custom_op("arch_search::rnn_backward", mutates_args=())
def _backward(
    tensors: list[Tensor], kept: list[Tensor], grads: list[Tensor], keep: Tensor | None,
    kernel: str, clip: str,
) -> list[Tensor]:  # fmt: skip
    """Gradients of `tensors`, in their order; those of weights and states in float32.

    Args:
        kept: every output and, for the LSTM, every cell.   grads: of the output and last states.
    """
    tensors = [x.contiguous() for x in tensors]
    B, T, N, V = _sizes(tensors)
    tiles, inputs = triton.cdiv(B, ROWS), INPUTS[kernel]
    d_inputs = [torch.empty_like(x) for x in tensors[:inputs]]
    weights = tensors[inputs : inputs + WEIGHTS[kernel]]
    slabs = [grads[1].new_empty(tiles, *w.shape, dtype=torch.float32) for w in weights]
    carries = [g.float().clone(memory_format=torch.contiguous_format) for g in grads[1:]]
    read = tensors[1:] if kernel == "rnn" else tensors
    launch, fast = _kernel(kernel, "backward", tensors[0].dtype, V)
    with torch.cuda.device_of(tensors[0]):
        launch[(N, tiles)](
            *read, carries[0] if keep is None else keep.contiguous(), *kept,
            grads[0].contiguous(), *carries, *d_inputs, *slabs, B, T, N, CLIP=clip,
            **_options(tensors, V, keep, fast),
        )  # fmt: skip
    return [*d_inputs, *(slab.sum(0) for slab in slabs), *carries]


@_backward.register_fake
def _(tensors, kept, grads, keep, kernel, clip):
    inputs = INPUTS[kernel]
    rest = [x.new_empty(x.shape, dtype=torch.float32) for x in tensors[inputs:]]
    return [x.new_empty(x.shape) for x in tensors[:inputs]] + rest


def _setup_context(ctx, inputs, output) -> None:
    tensors, keep, kernel, clip = inputs
    kept = [output[0], output[3]] if kernel == "lstm" else [output[0]]
    ctx.save_for_backward(*tensors, *kept, keep)
    ctx.count, ctx.kernel, ctx.clip = len(tensors), kernel, clip


def _gradient(ctx, grads):
    *saved, keep = ctx.saved_tensors
    tensors, kept = saved[: ctx.count], saved[ctx.count :]
    states = 2 if ctx.kernel == "lstm" else 1
    shapes = [kept[0].shape] + [tensors[-1].shape] * states
    grads = [
        kept[0].new_zeros(shape) if grad is None else grad
        for grad, shape in zip(grads[: 1 + states], shapes, strict=True)
    ]
    out = _backward(list(tensors), list(kept), grads, keep, ctx.kernel, ctx.clip)
    return [d.to(x.dtype) for d, x in zip(out, tensors, strict=True)], None, None, None


_forward.register_autograd(_gradient, setup_context=_setup_context)
