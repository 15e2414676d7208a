"""Measures the driver on many short runs: `python tests/runtime/push_a_thousand_runs.py [RUNS]`.

Two things, each with a fresh SQLite database: how long MLflow takes for finished runs of 2,000
steps (a record of six metrics every ten steps), and what a real driver costs that runs as many
stub runs on this machine: its own processor time and memory, workers and Ray's services left out.
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from plans import make_plan, start_driver, write

from arch_search.attempt import Attempt
from arch_search.plan_spec import Plan
from arch_search.progress import read_status
from arch_search.storage import Root
from arch_search.tracking.server import prepare, tracking_address
from arch_search.tracking.writer import Pushes

STEPS, EVERY, METRICS = 2_000, 10, 6


def finished(root: Root, runs: int) -> Plan:
    """A root with this many finished runs, as workers would have left them."""
    plan = make_plan("many", seeds=tuple(range(1, runs + 1)), steps=STEPS)
    write(root, plan)
    for planned in plan.runs:
        run = root.run(planned.hash)
        with Attempt.claim(run, experiment=plan.name) as attempt:
            with attempt.folder.journal.open("a") as file:
                for step in range(EVERY, STEPS + 1, EVERY):
                    values = {f"train/value_{i}": step / (i + 1) for i in range(METRICS)}
                    record = {"kind": "metrics", "step": step, "time": 1.7e9, "values": values}
                    file.write(json.dumps(record) + "\n")
            attempt.finish({"metrics": {"train/final_loss": 1.0}, "stream": {"tokens": "ab"}})
            run.write_evaluation(plan.evaluations[0], metrics={"val/bits_per_byte": 2.0}, tables={})
    return plan


def push(root: Root, plan: Plan) -> dict[str, float]:
    """Seconds to push everything, then to find that nothing is left; and the memory it took."""
    pushes = Pushes(root, plan)
    begun = time.monotonic()
    assert not pushes.try_push(driver_lives=True)
    first = time.monotonic() - begun
    begun = time.monotonic()
    assert not pushes.try_push(driver_lives=True)
    again = time.monotonic() - begun
    memory = psutil.Process().memory_info().rss / 1e6
    return {"seconds": first, "ms_a_run": 1e3 * first / len(plan.runs),
            "again_ms_a_run": 1e3 * again / len(plan.runs), "memory_mb": memory}  # fmt: skip


def drive(root: Root, runs: int) -> dict[str, float]:
    """What the driver's process takes for this many stub runs of one step."""
    plan = make_plan("stubs", seeds=tuple(range(1, runs + 1)), steps=1)
    write(root, plan)
    begun = time.monotonic()
    driver = start_driver(root, "stubs")
    memory, processor = 0.0, 0.0
    with_driver = psutil.Process(driver.pid)

    def watch() -> None:
        nonlocal memory, processor
        while driver.poll() is None:
            try:
                memory = max(memory, with_driver.memory_info().rss / 1e6)
                times = with_driver.cpu_times()
                processor = times.user + times.system
            except psutil.Error:
                return
            time.sleep(0.2)

    thread = threading.Thread(target=watch)
    thread.start()
    assert driver.wait() == 0
    thread.join()
    assert read_status(root, "stubs").count("FINISHED") == runs
    wall = time.monotonic() - begun
    return {"seconds": wall, "driver_cpu_ms_a_run": 1e3 * processor / runs,
            "driver_memory_mb": memory}  # fmt: skip


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in (("push", None), ("drive", drive)):
            root = Root(Path(folder) / name).make()
            prepare(tracking_address(root))
            found = push(root, finished(root, runs)) if measure is None else measure(root, runs)
            print(name, runs, {k: round(v, 2) for k, v in found.items()}, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
