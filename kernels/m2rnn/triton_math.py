"""The pieces of one M²RNN step that the Triton kernels share: phi, its derivative, the gate.

`PRECISE` takes tanh to float32 accuracy; without it, the hardware's approximation is used (relative
error up to 2^-11), which is below what bfloat16 operands cost.
"""

import triton
import triton.language as tl


@triton.jit
def precise_tanh(x):
    """tanh right to a few units in float32's last place, also where x is small."""
    s = x * x
    series = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    e = tl.exp(-2 * tl.abs(x))
    large = tl.where(x < 0, -1.0, 1.0) * (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < 0.25, series, large)


@triton.jit
def approximate_tanh(x):
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def nonlinearity(x, PHI: tl.constexpr, PRECISE: tl.constexpr):
    """phi of a pre-activation (rows, V), float32."""
    if PHI == "tanh":
        if PRECISE:
            z = precise_tanh(x)
        else:
            z = approximate_tanh(x)
    elif PHI == "softsign":
        z = x / (1 + tl.abs(x))
    elif PHI == "relu":
        z = tl.maximum(x, 0.0)
    elif PHI == "hard_tanh":
        z = tl.minimum(tl.maximum(x, -1.0), 1.0)
    elif PHI == "norm_clip":
        z = x / tl.maximum(tl.sqrt(tl.sum(x * x, axis=1)), 1.0)[:, None]
    else:
        z = x
    return z


@triton.jit
def through_nonlinearity(grad, x, z, PHI: tl.constexpr):
    """The gradient of x from that of z = phi(x), (rows, V); all but norm_clip need z alone."""
    if PHI == "tanh":
        out = grad * (1 - z * z)
    elif PHI == "softsign":
        slope = 1 - tl.abs(z)
        out = grad * slope * slope
    elif PHI == "relu":
        out = tl.where(z > 0, grad, 0.0)
    elif PHI == "hard_tanh":
        out = tl.where(tl.abs(z) < 1, grad, 0.0)
    elif PHI == "norm_clip":
        norm = tl.expand_dims(tl.sqrt(tl.sum(x * x, axis=1)), 1)
        along = tl.expand_dims(tl.sum(z * grad, axis=1), 1)
        out = tl.where(norm < 1, grad, (grad - z * along) / tl.maximum(norm, 1.0))
    else:
        out = grad
    return out


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def clamp_one(x):
    return tl.minimum(tl.maximum(x, -1.0), 1.0)


@triton.jit
def as_operand(x, OPERAND: tl.constexpr):
    """x as an operand of `product`: rounded to bfloat16, or as it is.

    "emulated" is bfloat16 for Triton's interpreter, whose products of bfloat16 tensors are wrong
    (3.9 multiplies the bit patterns as integers): rounded, then widened again.
    """
    if OPERAND != "float32":
        x = x.to(tl.bfloat16)
    if OPERAND != "bfloat16":
        x = x.to(tl.float32)
    return x


@triton.jit
def product(a, b, accumulator):
    return tl.dot(a, b, acc=accumulator, input_precision="ieee")


@triton.jit
def mix(h, diagonal, rest, x, WEIGHT: tl.constexpr, OPERAND: tl.constexpr):
    """x + h W in float32, for h (rows, V).

    The diagonal is multiplied in float32, so that rounding h to the dot's operand touches the
    off-diagonal part alone: near W = I it is small, and so is its error.
    """
    if WEIGHT == "identity":
        out = x + h
    else:
        out = x + h * diagonal[None, :]
        if WEIGHT == "dense":
            out = product(as_operand(h, OPERAND), rest, out)
    return out


@triton.jit
def load_weight(pointer, V: tl.constexpr, BV: tl.constexpr, WEIGHT: tl.constexpr):
    """W's diagonal (BV,) in float32 and the rest (BV, BV) in float32; zeros beyond V."""
    v = tl.arange(0, BV)
    inside = v < V
    diagonal = tl.zeros((BV,), tl.float32)
    rest = tl.zeros((BV, BV), tl.float32)
    if WEIGHT == "diagonal":
        diagonal = tl.load(pointer + v, mask=inside, other=0.0).to(tl.float32)
    elif WEIGHT == "dense":
        diagonal = tl.load(pointer + v * (V + 1), mask=inside, other=0.0).to(tl.float32)
        square = inside[:, None] & inside[None, :] & (v[:, None] != v[None, :])
        rest = tl.load(pointer + v[:, None] * V + v[None, :], mask=square, other=0.0)
        rest = rest.to(tl.float32)
    return diagonal, rest
