"""How the fast M²RNN kernels hold their operands: layouts, products, elementwise pieces.

The state's tile (R rows, V) lives in the accumulator layout of mma.m16n8k16, whose registers are
also those of a left operand: from one step to the next nothing is exchanged between lanes. Outer
products (k vᵀ, q dyᵀ) and readouts (Hᵀ q, D v) are matrix instructions too: `gluon_loads` brings
several steps' vectors into operand registers, and one step's part is picked by zeroing the others.
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
def widened(x, V: gl.constexpr, MMA: gl.constexpr):
    """x (bfloat16, accumulator layout) in float32: its product with the identity, which is exact.

    One m16n8k8 does it for four registers; shifts and masks took four instructions.
    """
    r = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, MMA))[:, None]
    c = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    identity = gl.where(r % 8 == c % 8, 1.0, 0.0).to(gl.bfloat16)
    return gl.inline_asm_elementwise(
        "{ .reg .f32 o; mov.f32 o, 0f00000000; "
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
        "{$0, $1, $2, $3}, {$4, $5}, {$6}, {o, o, o, o}; }",
        "=f,=f,=f,=f,r,r,r,r",
        [x, identity],
        dtype=gl.float32,
        is_pure=True,
        pack=4,
    )


@gluon.jit
def hold(x):
    """x (bfloat16) as the words that hold it, so that a loop can carry it.

    A loop carries single numbers: it would unpack a register into two and pack them again. Of a
    pair's two words the first holds both.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $2;", "=r,=r,r", [x], dtype=gl.int32, is_pure=True, pack=2
    )


@gluon.jit
def held(x):
    """The inverse of `hold`."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def hold_pair(x):
    """`hold` of each of two."""
    return hold(x[0]), hold(x[1])


@gluon.jit
def held_pair(x):
    """`held` of each of two."""
    return held(x[0]), held(x[1])


@gluon.jit
def anew(x):
    """x (an integer), from which addresses are computed again instead of kept in registers."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
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
def outer(rows, values, step, x, V: gl.constexpr, MMA: gl.constexpr):
    """x + a bᵀ (R, V), a and b being the vectors of `step` in `row_steps` and `value_steps`.

    mma.m16n8k8, whose registers are handed over as those of (R, V): in lane l the accumulator has
    row l / 4 and columns 2 (l % 4) + {0, 1}, the left operand row l / 4 and the right one column
    l / 4 at that place k = 2 (l % 4) + {0, 1}. Step j stands at k = 2 j, zeros at 2 j + 1.
    """
    c = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    return gl.inline_asm_elementwise(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
        "{$0, $1, $2, $3}, {$4, $5}, {$6}, {$8, $9, $10, $11};",
        "=f,=f,=f,=f,r,r,r,r,f,f,f,f",
        [rows, pick(values, c % 8 // 2 - step + gl.zeros_like(x).to(gl.int32)), x],
        dtype=gl.float32,
        is_pure=True,
        pack=4,
    )


@gluon.jit
def lane_products(x, y, R: gl.constexpr, V: gl.constexpr):
    """Sums x y (R, V) over each lane's own registers: (1, 32), one number a lane, no exchange."""
    p = gl.inline_asm_elementwise(
        "{ .reg .f32 s; mul.f32 s, $4, $8; fma.rn.f32 s, $5, $9, s; fma.rn.f32 s, $6, $10, s; "
        "fma.rn.f32 $0, $7, $11, s; mov.f32 $1, 0f00000000; mov.f32 $2, $1; mov.f32 $3, $1; }",
        "=f,=f,=f,=f,f,f,f,f,f,f,f,f",
        [x, y],
        dtype=gl.float32,
        is_pure=True,
        pack=4,
    )
    # of the four registers of an 8 x 16 corner the first holds the sum
    p = gl.permute(gl.reshape(p, [R // 16, 2, 8, V // 8, 4, 2]), (0, 3, 2, 4, 1, 5))
    p = gl.split(gl.split(p)[0])[0]
    return gl.reshape(gl.sum(gl.sum(p, axis=0), axis=0), [1, 32])
