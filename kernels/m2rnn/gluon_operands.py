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
def _transpose_blocks(x):
    """Transposes each 8 x 8 block of x (bfloat16, accumulator layout), from lane to lane."""
    return gl.inline_asm_elementwise(
        "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;",
        "=r,r",
        [x],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def transposed_left(x, R: gl.constexpr, V: gl.constexpr, LEFT: gl.constexpr):
    """xᵀ (V, R) as a left operand, for x (R, V) in the accumulator layout."""
    x = gl.reshape(_transpose_blocks(x), [R // 8, 8, V // 8, 8])
    return gl.convert_layout(gl.reshape(gl.permute(x, (2, 1, 0, 3)), [V, R]), LEFT)


@gluon.jit
def right(x, R: gl.constexpr, V: gl.constexpr, RIGHT: gl.constexpr):
    """x (R, V) as a right operand, for x in the accumulator layout."""
    x = gl.reshape(_transpose_blocks(x), [R // 8, 8, V // 8, 8])
    return gl.convert_layout(gl.reshape(gl.permute(x, (0, 3, 2, 1)), [R, V]), RIGHT)


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
def slope(z, scale, PHI: gl.constexpr):
    """scale phi'(x) from z = phi(x); scale is a column (R, 1)."""
    if PHI == "tanh":
        out = scale - (scale * z) * z
    elif PHI == "softsign":
        root = 1 - gl.abs(z)
        out = (scale * root) * root
    elif PHI == "relu":
        out = gl.where(z > 0, scale, 0.0)
    elif PHI == "hard_tanh":
        out = gl.where(gl.abs(z) < 1, scale, 0.0)
    else:
        out = gl.zeros_like(z) + scale
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
def fetch_rows(x, stride, low, high, LAYOUT: gl.constexpr):
    """Asks the L2 cache for the rows x + j stride of 8 steps, j kept within [low, high].

    A load holds one of a warp's six scoreboards until it is served, and what shares it waits; this
    holds none, and makes the load that follows some blocks later a short one.
    """
    j = gl.arange(0, 8, layout=gl.SliceLayout(1, LAYOUT))
    j = gl.minimum(gl.maximum(j, low), high)
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [(x + j * stride).to(gl.int64)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def step_numbers(x, stride, steps, LAYOUT: gl.constexpr):
    """One number for each of 8 steps (8,), spread over the lanes; 1 beyond the end.

    Eight scalar loads would each wait for their value at once, to move it to a uniform register.
    """
    j = gl.arange(0, 8, layout=gl.SliceLayout(1, LAYOUT))
    return gl.load(x + j * stride, mask=j < steps, other=1.0).to(gl.float32)


@gluon.jit
def number_at(numbers, j, R: gl.constexpr, LAYOUT: gl.constexpr):
    """Step j's number as a column (R, 1): four lanes hold it, all lanes fetch it from there."""
    lane = gl.full([8], 4 * j, gl.int32, layout=gl.SliceLayout(1, LAYOUT))
    x = gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;",
        "=f,f,r",
        [numbers, lane],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )
    x = gl.reshape(gl.permute(gl.join(x, x), (1, 0)), [16])
    if R == 32:
        x = gl.reshape(gl.permute(gl.join(x, x), (1, 0)), [32])
    return gl.convert_layout(x, gl.SliceLayout(1, LAYOUT))[:, None]


@gluon.jit
def lane_sums(x, R: gl.constexpr, V: gl.constexpr):
    """Sums x (R, V) over each lane's own registers: (1, 32), one number a lane, no exchange."""
    x = gl.reshape(x, [R // 16, 2, 8, V // 8, 4, 2])
    x = gl.sum(gl.sum(x, axis=5), axis=3)
    x = gl.sum(gl.sum(x, axis=1), axis=0)
    return gl.reshape(x, [1, 32])
