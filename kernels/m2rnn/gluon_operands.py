"""How the fast M²RNN kernels hold their operands: layouts, masked time blocks, elementwise pieces.

The state's tile (R rows, V) lives in the accumulator layout of mma.m16n8k16, whose registers are
also those of a left operand: from one step to the next nothing is exchanged between lanes. Inputs
are taken in blocks of S = 8 steps, straight from global memory into operand registers; one step's
part is picked by zeroing the others, so that outer products (k vᵀ, q dyᵀ) and readouts (Hᵀ q, D v)
are matrix instructions too, and their results for 8 steps gather in one accumulator.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportOptionalMemberAccess=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

STEPS = 8  # the time block: mma.m16n8k16 has 8 columns, and 16 contracted places hold 8 steps twice


@gluon.jit
def pick(x, distance):
    """x (bfloat16) where distance (int32) is 0, else 0.

    Both elements of a register share their distance, so that one select does for the two.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, 0; selp.b32 $0, $1, 0, p; }",
        "=r,r,r,r",
        [x, distance],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def clamp_one(x):
    """x within [-1, 1] in one instruction: the smaller magnitude of x and 1, with x's sign."""
    return gl.inline_asm_elementwise(
        "min.xorsign.abs.f32 $0, $1, 0f3F800000;",
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def nonlinearity(x, PHI: gl.constexpr):
    """phi, element by element, in float32; tanh by the hardware's approximation."""
    if PHI == "tanh":
        z = gl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
        )
    elif PHI == "softsign":
        z = x / (1 + gl.abs(x))
    elif PHI == "relu":
        z = gl.maximum(x, 0.0)
    elif PHI == "hard_tanh":
        z = clamp_one(x)
    else:
        z = x
    return z


@gluon.jit
def through_nonlinearity(grad, z, PHI: gl.constexpr):
    """The gradient of x from that of z = phi(x)."""
    if PHI == "tanh":
        out = grad * (1 - z * z)
    elif PHI == "softsign":
        slope = 1 - gl.abs(z)
        out = grad * slope * slope
    elif PHI == "relu":
        out = gl.where(z > 0, grad, 0.0)
    elif PHI == "hard_tanh":
        out = gl.where(gl.abs(z) < 1, grad, 0.0)
    else:
        out = grad
    return out


@gluon.jit
def row_steps(x, stride, steps, rows, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Left operand (ROWS, 16): column 2 j is step j's vector, odd columns are zero."""
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, 16, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    inside = (c % 2 == 0) & (c // 2 < steps) & (r < rows)
    return gl.load(x + (c // 2) * stride + r, mask=inside, other=0.0)


@gluon.jit
def value_steps(x, stride, steps, V: gl.constexpr, LAYOUT: gl.constexpr):
    """Right operand (16, V): row 2 j is step j's vector, odd rows are zero."""
    r = gl.arange(0, 16, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, V, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    inside = (r % 2 == 0) & (r // 2 < steps)
    return gl.load(x + (r // 2) * stride + c, mask=inside, other=0.0)


@gluon.jit
def column_steps(x, stride, steps, rows, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Right operand (ROWS, 8): column j is step j's vector."""
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, 8, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(x + c * stride + r, mask=(c < steps) & (r < rows), other=0.0)


@gluon.jit
def stacked_steps(x, stride, steps, rows, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Left operand (16, ROWS): row j < 8 is step j's vector, the others are zero."""
    r = gl.arange(0, 16, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(x + r * stride + c, mask=(r < 8) & (r < steps) & (c < rows), other=0.0)


@gluon.jit
def gates(forget, stride, steps):
    """The gate at each step of a block, as scalars; 1 beyond the end, where the state is kept."""
    out = ()
    for j in gl.static_range(8):
        gate = gl.load(forget + j * stride, mask=j < steps, other=1.0)
        out = out + (gate.to(gl.float32),)  # noqa: RUF005 - the compiler knows no unpacking
    return out


@gluon.jit
def keeps(keep, steps):
    """0 at the steps that begin a document and 1 elsewhere, as scalars."""
    out = ()
    for j in gl.static_range(8):
        out = out + (gl.load(keep + j, mask=j < steps, other=1.0),)  # noqa: RUF005
    return out


@gluon.jit
def lane_sums(x, R: gl.constexpr, V: gl.constexpr):
    """Sums x (R, V) over each lane's own registers: (1, 32), one number a lane, no exchange."""
    x = gl.reshape(x, [R // 16, 2, 8, V // 8, 4, 2])
    x = gl.sum(gl.sum(x, axis=5), axis=3)
    x = gl.sum(gl.sum(x, axis=1), axis=0)
    return gl.reshape(x, [1, 32])
