"""The Triton kernels' signatures, compiled for sm_90 without a GPU: nothing may spill in earnest.

The fast backward is held at a register count that lets a third warp run, or holds two chains at
once: faster than the few words that it keeps in memory cost (kernels/MEASURED.md). How many they
may be is bounded here, in instructions of the whole kernel and of a loop over steps.
"""

# ruff: noqa: E402
import os
import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from kernels.gated_norm.in_one import gate_norm_backward, gate_norm_forward
from kernels.m2rnn.fast_scan import FORWARD, Cut
from kernels.m2rnn.gluon_backward import fast_backward
from kernels.m2rnn.gluon_forward import fast_forward
from kernels.m2rnn.partial_sums import _sum_gradients, _sum_tiles
from kernels.m2rnn.triton_backward import scan_backward
from kernels.m2rnn.triton_forward import scan_forward
from kernels.m2rnn.triton_gate import gate_backward, gate_forward
from kernels.m2rnn.triton_scan import plan
from kernels.m2rnn.triton_step import scan_step
from kernels.rnn.triton_scan import BREAKS_FLOAT32_LSTM, MAX_FLOAT32_LSTM, plain_warps
from kernels.rnn.triton_scan import FAST as FAST_CELLS
from kernels.rnn.triton_scan import PLAIN as PLAIN_CELLS
from kernels.triton_convolution import convolution_backward, convolution_forward

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)

IN_DTYPE = {"query", "key", "value", "grad_output"}
IN_CELLS = {"x", "forget", "recall", "gates", "y", "d_y", "d_x", "d_forget", "d_recall", "d_gates"}
FAST_BACKWARD, GENERAL_BACKWARD = 80, 4  # instructions; all other kernels: none
IN_A_LOOP = 8  # of 750 to 2,700 in a loop over steps; triton 3.7.1 needs none there
NORM = {  # arguments of the gated norm alone
    "eps": "fp32", "S": "i32", "rows": "i32",
    **dict.fromkeys(("y", "dy", "gate", "out", "d_out", "d_gate"), "*{}"),
    **dict.fromkeys(("y_row", "v_row", "g_row", "o_row", "dg_row"), "i32"),
}  # fmt: skip
INTEGER = re.compile(
    r"^([BTNS]|first|last|tiles|\w+_group|\w+_heads|(query|key|value|forget)_[btn])$"
)


SPILL = re.compile(r"\b(LDL|STL)\b")


def spilled(tmp_path: Path, kernel, constants: dict, dtype: str, **options) -> int:
    """Instructions that move a register to or from local memory."""
    return len(SPILL.findall(machine_code(tmp_path, kernel, constants, dtype, **options)))


def innermost_loops(listing: str) -> list[str]:
    """The code of each loop that holds no other."""
    lines, labels, loops = listing.splitlines(), {}, []
    for i, line in enumerate(lines):
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = i
        back = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if back and back[1] in labels:
            loops.append((labels[back[1]], i))
    inner = [(a, b) for a, b in loops if not any(a < c and d < b for c, d in loops)]
    return ["\n".join(lines[a:b]) for a, b in inner]


def machine_code(tmp_path: Path, kernel, constants: dict, dtype: str, **options) -> str:
    """The kernel's listing for sm_90."""
    signature = signature_of(kernel, constants, dtype)
    aligned = re.compile(r"^(query|key|value)_[btn]$")
    divisible = [n for n, kind in signature.items() if kind[0] == "*" or aligned.match(n)]
    return listing_of(tmp_path, kernel, signature, constants, divisible, **options)


def signature_of(kernel, constants: dict, dtype: str) -> dict[str, str]:
    """The types of a kernel's arguments."""
    names = kernel.arg_names
    cell = "x" in names or "gates" in names or "d_x" in names
    gluon = type(kernel).__name__ == "GluonJITFunction"
    signature = {}
    for name in names:
        kind = "i32" if INTEGER.match(name) and (name != "last" or not cell) else "*fp32"
        if (
            name in IN_DTYPE
            or (cell and name in IN_CELLS)
            or (name in ("borders", "scratch") and (gluon or name == "scratch"))
            or (name in ("d_query", "d_key") and gluon and not cell)
        ):
            kind = f"*{dtype}"
        if "eps" in names:
            kind = NORM.get(name, kind).format(dtype)
        signature[name] = "constexpr" if name in constants else kind
    return signature


def listing_of(
    tmp_path: Path, kernel, signature: dict, constants: dict, divisible: list[str], **options
) -> str:
    """What `nvdisasm` says of the kernel; arguments in `divisible` are multiples of 16."""
    names = kernel.arg_names
    gluon = type(kernel).__name__ == "GluonJITFunction"
    source = (GluonASTSource if gluon else ASTSource)(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in divisible},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    listing = subprocess.run(
        [tools / "nvdisasm", "-c", binary], capture_output=True, text=True, check=True
    ).stdout
    assert "EXIT" in listing
    return listing


FAST = [
    (R, V, *choices)
    for R, V in ((16, 16), (32, 16), (16, 32))
    for choices in (
        ("dense", "tanh", False, "carry", True),
        ("dense", "tanh", True, "sum", False),
        ("diagonal", "softsign", True, "carry", False),
        ("identity", "hard_tanh", False, "none", True),
    )
]


OTHER_FORMS = [
    (32, FORWARD[32] | {"LATE": True, "LEVEL": 0}),
    (16, FORWARD[16] | {"FOUR": True, "CHAINED": True, "LATE": True}),
]


@pytest.mark.parametrize("R,form", OTHER_FORMS)
def test_other_forms_of_the_fast_forward(tmp_path, R, form):
    constants = {"K": 64, "V": 16, "C": 16, "WEIGHT": "dense", "PHI": "tanh", "RESET": False}
    constants |= {"R": R, "SAVE": True, "EVEN": True}
    assert spilled(tmp_path, fast_forward, constants | form, "bf16", num_warps=1) == 0


@pytest.mark.parametrize("R,V,weight,phi,reset,clip,even", FAST)
def test_fast_scan(tmp_path, R, V, weight, phi, reset, clip, even):
    constants = {"K": 64, "V": V, "C": 16, "WEIGHT": weight, "PHI": phi, "RESET": reset}
    forward = constants | {"R": R, "SAVE": True, "EVEN": even and R == 32} | FORWARD[R]
    assert spilled(tmp_path, fast_forward, forward, "bf16", num_warps=1) == 0
    how = Cut(rows=R, tiles=1, segment=16, even=even).backward_options(V)
    options = {name: how.pop(name) for name in ("num_warps", "maxnreg")}
    listing = machine_code(
        tmp_path, fast_backward, constants | how | {"CLIP": clip}, "bf16", **options
    )
    loops = innermost_loops(listing)
    assert max(len(loop.splitlines()) for loop in loops) > 300  # a loop over steps is among them
    assert max(len(SPILL.findall(loop)) for loop in loops) <= IN_A_LOOP
    assert len(SPILL.findall(listing)) <= FAST_BACKWARD


GENERAL = [
    ("fp32", 64, 16, "dense", "tanh", False, False, False),
    ("fp32", 64, 32, "dense", "norm_clip", True, False, True),
    ("fp32", 64, 64, "dense", "norm_clip", True, False, True),
    ("fp32", 24, 20, "diagonal", "relu", False, False, True),
    ("fp32", 64, 16, "dense", "tanh", True, True, False),
    ("fp32", 128, 16, "dense", "norm_clip", False, True, True),
    ("bf16", 64, 16, "dense", "tanh", True, False, True),
    ("bf16", 64, 32, "dense", "norm_clip", True, False, False),
    ("bf16", 64, 64, "dense", "tanh", False, False, False),
    ("bf16", 192, 64, "identity", "softsign", True, False, True),
    ("bf16", 64, 16, "dense", "tanh", False, True, True),
    ("bf16", 64, 20, "dense", "tanh", True, True, False),
]


@pytest.mark.parametrize("dtype,K,V,weight,phi,state_gate,delta,reset", GENERAL)
def test_general_scan(tmp_path, dtype, K, V, weight, phi, state_gate, delta, reset):
    cut = plan(8, K, V, delta=delta)
    constants = {
        "K": K, "V": V, "BK": cut.BK, "BV": cut.BV, "C": cut.C, "WEIGHT": weight, "PHI": phi,
        "STATE_GATE": state_gate, "DELTA": delta, "RESET": reset, "PRECISE": dtype == "fp32",
        "OPERAND": "float32" if dtype == "fp32" else "bfloat16",
    }  # fmt: skip
    options = {"num_warps": cut.warps, "num_stages": 1}
    one_step = {name: value for name, value in constants.items() if name != "C"}
    for kernel, more in (
        (scan_forward, constants | {"SAVE": True}),
        (scan_step, one_step),
        (scan_backward, constants | {"CLIP": "carry"}),
    ):
        limit = GENERAL_BACKWARD if kernel is scan_backward else 0
        assert spilled(tmp_path, kernel, more, dtype, **options) <= limit, kernel.__name__


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("reset,clip", [(False, "carry"), (True, "sum")])
def test_vector_cells(tmp_path, cell, reset, clip):
    for V in (16, 32) if cell == "rnn" else (16,):
        fast = {"V": V, "RESET": reset}
        for way, more in (("forward", {}), ("backward", {"CLIP": clip})):
            kernel = getattr(FAST_CELLS[cell], f"{cell}_{way}")
            assert spilled(tmp_path, kernel, fast | more, "bf16", num_warps=1) == 0, way
    for dtype, V in (("fp32", 16), ("bf16", 16), ("fp32", 64), ("bf16", 64)):
        if cell == "lstm" and dtype == "fp32" and (BREAKS_FLOAT32_LSTM or V > MAX_FLOAT32_LSTM):
            continue  # the scan refuses it
        plain = {"V": V, "BB": 16, "BV": V, "RESET": reset, "PRECISE": dtype == "fp32",
                 "OPERAND": "float32" if dtype == "fp32" else "bfloat16"}  # fmt: skip
        for way, more in (("forward", {}), ("backward", {"CLIP": clip})):
            kernel = getattr(PLAIN_CELLS[cell], f"{cell}_{way}")
            warps = plain_warps(V, float32=dtype == "fp32")
            limit = GENERAL_BACKWARD if way == "backward" else 0
            assert spilled(tmp_path, kernel, plain | more, dtype, num_warps=warps) <= limit, way


def test_sums(tmp_path):
    tiles = {"V": 16, "BLOCK": 1024, "MEMBERS": 2}
    assert spilled(tmp_path, _sum_tiles, tiles, "bf16", num_warps=4) == 0
    gradients = {"K": 64, "V": 16, "FEW": 4, "CELLS": 1024, "BLOCK": 64, "MEMBERS": 64}
    gradients |= {"RESIDUAL": True}
    assert spilled(tmp_path, _sum_gradients, gradients, "bf16", num_warps=4) == 0


@pytest.mark.parametrize("dtype,residual", [("bf16", True), ("fp32", False)])
def test_gated_norm(tmp_path, dtype, residual):
    row = {"RESIDUAL": residual, "BLOCK": 2048, "PTX": True}
    for kernel, more in ((gate_norm_forward, {}), (gate_norm_backward, {"PASSED": residual})):
        assert spilled(tmp_path, kernel, row | more, dtype, num_warps=8) == 0


TILE = {"STEPS": 32, "HEADS": 32}
TAPS = {"W": 4, "BIAS": False, "SILU": True, "CHUNK": 64, "CHANNELS": 128, "PTX": True}


@pytest.mark.parametrize(
    "kernel,constants,warps",
    [
        (convolution_forward, TAPS, 1),
        (convolution_backward, TAPS, 1),
        (gate_forward, TILE, 4),
        (gate_backward, TILE | {"TILES": 16, "PTX": True}, 4),
    ],
)
def test_around_the_scan(tmp_path, kernel, constants, warps):
    kinds = dict.fromkeys(("x", "y", "dx", "dy", "a", "da"), "*bf16")
    kinds |= dict.fromkeys(("weight", "bias", "sums", "A_log", "dt_bias", "f", "df"), "*fp32")
    signature = {n: kinds.get(n, "i32") for n in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    listing = listing_of(
        tmp_path, kernel, signature, constants,
        [n for n, kind in signature.items() if kind[0] == "*" or re.match(r"C$|.*_[bt]$", n)],
        num_warps=warps,
    )  # fmt: skip
    assert not SPILL.search(listing)
    if kernel is convolution_forward:  # four channels of a lane at once
        assert "STG.E.64" in listing
        assert "LDG.E.64" in listing
        assert "LDG.E.U16" not in listing
