"""What the fast M²RNN kernels load: several steps' vectors, straight into operand registers."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportAssignmentType=false, reportOptionalMemberAccess=false
# (Gluon's own types are those of its compiler)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _load_low(pointers, mask):
    """bfloat16 at every other pointer, 0 where masked; its neighbour becomes 0.

    One load fills a register: it needs no instruction to pack. A mask that is known when compiling
    costs nothing.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; mov.b32 $0, 0; @p ld.global.nc.u16 $0, [$1]; }",
        "=r,l,l,r,r",
        [pointers.to(gl.int64), mask.to(gl.int32)],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def row_steps(
    x, stride, steps, rows, R: gl.constexpr, V: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr
):
    """Left operand of `outer`: 4 steps' vectors of R numbers. EVEN: all of them exist."""
    r = gl.arange(0, R, layout=gl.SliceLayout(1, MMA))[:, None]
    c = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    step = c % 8 // 2
    inside = (step >= 0) & (r >= 0)
    if not EVEN:
        inside = (step < steps) & (r < rows)
    return _load_low(x + (step * stride + r % 8) + r // 8 * 8, inside)


@gluon.jit
def value_steps(
    x, stride, steps, R: gl.constexpr, V: gl.constexpr, EVEN: gl.constexpr, MMA: gl.constexpr
):
    """Right operand of `outer`: 4 steps' vectors of V numbers."""
    r = gl.arange(0, R, layout=gl.SliceLayout(1, MMA))[:, None]
    c = gl.arange(0, V, layout=gl.SliceLayout(0, MMA))[None, :]
    step = c % 8 // 2
    inside = (step >= 0) & (r >= 0)
    if not EVEN:
        inside = (step < steps) & (r >= 0)
    return _load_low(x + (step * stride + r % 8) + c // 8 * 8, inside)


@gluon.jit
def column_steps(
    x, stride, steps, rows, ROWS: gl.constexpr, LAYOUT: gl.constexpr, EVEN: gl.constexpr
):
    """Right operand (ROWS, 8): column j is step j's vector."""
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, 8, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    if EVEN:
        return gl.load(x + c * stride + r)
    return gl.load(x + c * stride + r, mask=(c < steps) & (r < rows), other=0.0)


@gluon.jit
def eight_rows(x, stride, steps, rows, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Left operand (ROWS, 16) of mma_v2: column 2 j is step j's vector, odd columns are zero."""
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, 16, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    inside = (c % 2 == 0) & (c // 2 < steps) & (r < rows)
    return gl.load(x + (c // 2) * stride + r, mask=inside, other=0.0)


@gluon.jit
def eight_values(x, stride, steps, V: gl.constexpr, LAYOUT: gl.constexpr):
    """Right operand (16, V) of mma_v2: row 2 j is step j's vector, odd rows are zero."""
    r = gl.arange(0, 16, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, V, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    inside = (r % 2 == 0) & (r // 2 < steps)
    return gl.load(x + (r // 2) * stride + c, mask=inside, other=0.0)


@gluon.jit
def fetch(addresses, LEVEL: gl.constexpr):
    """Asks the first- or second-level cache for what stands there.

    A load holds one of a warp's six scoreboards until it is served, and what shares it waits; this
    holds none, and makes the load that follows some steps later a short one.
    """
    NEAR: gl.constexpr = "prefetch.global.L1 [$1]; mov.b32 $0, 0;"
    FAR: gl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(
        NEAR if LEVEL == 1 else FAR,
        "=r,l",
        [addresses.to(gl.int64)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def fetch_rows(x, stride, low, high, LEVEL: gl.constexpr, LAYOUT: gl.constexpr):
    """`fetch` of the rows x + j stride of 8 steps, j kept within [low, high]."""
    j = gl.arange(0, 8, layout=gl.SliceLayout(1, LAYOUT))
    fetch(x + gl.minimum(gl.maximum(j, low), high) * stride, LEVEL)


@gluon.jit
def step_numbers(x, stride, steps, LAYOUT: gl.constexpr, EVEN: gl.constexpr):
    """One number for each of 8 steps (8,), spread over the lanes; 1 beyond the end.

    Eight scalar loads would each wait for their value at once, to move it to a uniform register.
    """
    j = gl.arange(0, 8, layout=gl.SliceLayout(1, LAYOUT))
    if EVEN:
        return gl.load(x + j * stride).to(gl.float32)
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
