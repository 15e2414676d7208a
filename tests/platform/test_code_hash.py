"""The code hash covers what a run executes, and nothing else."""

import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from arch_search.code_hash import code_hash, used_modules

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
