"""What the fast RNN, GRU and LSTM share: loads in operand layout, products, weights, prefetches.

One warp owns 16 sequences of one head. The state stays in the accumulator layout of
mma.m16n8k16, which is also that of a left operand, and inputs are loaded in it: no step waits for
an exchange between lanes, and only the weights' gradients transpose anything.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.m2rnn.gluon_operands import clamp_one, nonlinearity, right, transposed_left

AHEAD = gl.constexpr(8)  # steps between asking the L2 cache for a row and loading it


@gluon.jit
def sigma(x):
    return 0.5 * nonlinearity(0.5 * x, "tanh") + 0.5


@gluon.jit
def head_weight(
    pointer, n, part, TRANSPOSE: gl.constexpr, PARTS: gl.constexpr, V: gl.constexpr,
    RIGHT: gl.constexpr,
):  # fmt: skip
    """Columns part V to (part + 1) V of head n's weight, or their transpose, as right operand."""
    i = gl.arange(0, V, layout=gl.SliceLayout(1, RIGHT))[:, None]
    j = gl.arange(0, V, layout=gl.SliceLayout(0, RIGHT))[None, :]
    at = j * V * PARTS + i if TRANSPOSE else i * V * PARTS + j
    return gl.load(pointer + n * V * V * PARTS + part * V + at).to(gl.bfloat16)


@gluon.jit
def add_outer(total, h, d, V: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """total + hᵀ d, for h and d (16, V) rounded to bfloat16."""
    return mma_v2(transposed_left(h, 16, V, LEFT), right(d, 16, V, RIGHT), total)


@gluon.jit
def store_weight(pointer, slab, part, x, PARTS: gl.constexpr, V: gl.constexpr, MMA: gl.constexpr):
    i = gl.arange(0, V, layout=gl.SliceLayout(1, MMA))[:, None]
    j = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    gl.store(pointer + slab * V * V * PARTS + i * V * PARTS + part * V + j, x)


@gluon.jit
def fetch(pointer, row, exists):
    """Asks the L2 cache for a step's rows; where there is no such step, for the tensor's start.

    The loads of a step some way ahead are then short ones.
    """
    there = gl.where(row * 0 + exists > 0, row, 0)
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [(pointer + there).to(gl.int64)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def receive(grad, carry, CLIP: gl.constexpr):
    """dL/dh_t from the output's gradient and the carried one."""
    if CLIP == "carry":
        carry = clamp_one(carry)
    r = grad + carry
    if CLIP == "sum":
        r = clamp_one(r)
    return r


@gluon.jit
def places(B, T, N, V: gl.constexpr, MMA: gl.constexpr):
    """The head, the sequences (16,), the columns, what exists, and where rows start: at the first
    step of an input (B, T, N, V), and in a state (B, N, V)."""
    n = gl.program_id(0).to(gl.int64)
    b = (gl.program_id(1) * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))).to(gl.int64)
    v = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    inside = (b < B)[:, None] & (v < V)
    return n, b, v, inside, (b * T * N + n)[:, None] * V, (b * N + n)[:, None] * V + v


@gluon.jit
def load_tile(pointer, cells, inside, exists):
    """A tile, zeros where the step does not exist."""
    return gl.load(pointer + cells, mask=inside & (cells * 0 + exists > 0), other=0.0)


@gluon.jit
def product(x, w, accumulator, LEFT: gl.constexpr):
    """accumulator + x w for x in the accumulator layout, rounded to bfloat16."""
    return mma_v2(gl.convert_layout(x.to(gl.bfloat16), LEFT), w, accumulator)


@gluon.jit
def kept_column(keep, b, B, T, t):
    """0 for the sequences that begin a document at step t, else 1: (16, 1)."""
    return gl.load(keep + b * T + t, mask=b < B, other=1.0)[:, None]
