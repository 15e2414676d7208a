"""Every check of the repository, one after the other: `python tests/check.py [pytest's arguments]`.

All of them run, whatever fails before; pytest comes last, so that its closing line is the last
one. The exit status is 0 only if nothing failed.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(sysconfig.get_path("scripts"))  # of the environment that runs this file

STATIC_CHECKS: dict[str, list[str]] = {
    "ruff check": [str(SCRIPTS / "ruff"), "check", "."],
    "ruff format": [str(SCRIPTS / "ruff"), "format", "--check", "."],
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
    "import-linter": [str(SCRIPTS / "lint-imports"), "--no-logo"],
}
# Two processes of one thread each: the tensors of the tests are too small to gain from more.
PYTEST = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}


def passes(name: str, command: list[str]) -> bool:
    """Run one check in the repository's root, with no terminal to ask questions on."""
    print(f"== {name}", flush=True)
    environment = {**os.environ, **ENVIRONMENT}
    ran = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False)
    return ran.returncode == 0


def main(pytest_arguments: list[str]) -> int:
    """Run every check; 1 if any failed."""
    failed = [name for name, command in STATIC_CHECKS.items() if not passes(name, command)]
    if failed:
        print(f"failed before the tests: {', '.join(failed)}", flush=True)
    tested = passes("pytest", [*PYTEST, *pytest_arguments])
    return 0 if tested and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
