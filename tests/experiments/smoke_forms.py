"""Runs the smoke forms of experiment files: `python smoke_forms.py ROOT FILE…`, for the tests.

A process of its own, since Ray's authentication is settled when a process first uses it. Errors go
to ROOT/smoke_errors.json, by file, so that one file's mistake is that file's failure alone.
"""

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from arch_search.plan_spec import Plan
from arch_search.planned_data import require_data
from arch_search.planning import make_plans
from arch_search.scheduling.dispatch import Dispatcher
from arch_search.scheduling.session import Session, start_local
from arch_search.scheduling.task import EXECUTE
from arch_search.storage import Root

SMOKE = "smoke"
ERRORS = "smoke_errors.json"


def run_smoke_forms(root: Root, files: Sequence[Path]) -> dict[str, str]:
    """By the scheduler's own dispatcher, on the workers of one session; returns errors.

    Learning rates first, for the files that tune them; then the comparisons, all side by side.
    """
    errors: dict[str, str] = {}
    with contextlib.closing(start_local()) as session:
        for tuning in (True, False):
            plans: list[Plan] = []
            for file in files:
                with _kept(errors, file):
                    plan, before = make_plans(file, root, [f"scale={SMOKE}"])
                    require_data(plan)
                    assert tuning or before is None, "the learning rates were not found"
                    chosen = before if tuning else plan
                    plans += [] if chosen is None else [chosen]
            _run(root, session, plans)
    return errors


@contextlib.contextmanager
def _kept(errors: dict[str, str], file: Path) -> Iterator[None]:
    try:
        yield
    except Exception:
        errors[file.stem] = traceback.format_exc()


def _run(root: Root, session: Session, plans: Sequence[Plan]) -> None:
    dispatchers = []
    for plan in plans:
        for run in plan.runs:
            root.run(run.hash).freeze(run.spec)
        root.experiment(plan.name).write_plan(plan)
        dispatchers.append(
            Dispatcher(
                root=root, folder=root.experiment(plan.name), plan=plan, session=session,
                execute=EXECUTE, since=time.time(),
            )
        )  # fmt: skip
    while dispatchers:
        dispatchers = [one for one in dispatchers if one.tick(0.05)]


if __name__ == "__main__":
    storage = Root(Path(sys.argv[1])).make()
    found = run_smoke_forms(storage, [Path(file) for file in sys.argv[2:]])
    (storage.path / ERRORS).write_text(json.dumps(found))
