"""`logs`: a run's journal over all its attempts, or an experiment's driver, as lines."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from arch_search.commands.control import find
from arch_search.errors import UsageError
from arch_search.journal import Record, read_journal
from arch_search.lease import is_live
from arch_search.progress import has_driver
from arch_search.storage import NAME, AttemptFolder, ExperimentFolder, Root, RunFolder


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="experiment/arm/seed, a run's hash, or "
                                       "an experiment's name for its driver's log.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A run's records, a JSON object a line; "
                                          "all attempts, each record with its number.")] = False,
) -> None:  # fmt: skip
    """What a run, or an experiment's driver, has written."""
    root = Root()
    try:
        for line in _records(root, run) if as_json else _lines(root, run, follow=follow):
            print(line, flush=follow)
    except KeyboardInterrupt:
        return


def _lines(root: Root, text: str, *, follow: bool) -> Iterator[str]:
    if "/" not in text and NAME.fullmatch(text) and root.experiment(text).path.is_dir():
        return _driver_lines(find(root, text), follow=follow)
    return _run_lines(find_run(root, text), follow=follow)


def _records(root: Root, text: str) -> Iterator[str]:
    for attempt in find_run(root, text).attempts():
        for record in read_journal(attempt.journal)[0]:
            yield json.dumps({"attempt": attempt.number, **asdict(record)})


def find_run(root: Root, text: str) -> RunFolder:
    """A run by experiment/arm/seed, or by the beginning of its hash. Raises UsageError."""
    if "/" not in text:
        found = [run for run in root.runs() if run.hash.startswith(text)]
        if len(found) == 1:
            return found[0]
        problem = "no run has" if not found else f"{len(found)} runs have"
        raise UsageError(f"{problem} a hash that begins with {text!r}; or give experiment/arm/seed")
    experiment, _, rest = text.partition("/")
    plan = find(root, experiment).plan()
    for planned in plan.runs:
        if f"{planned.arm}/{planned.seed}" == rest:
            return root.run(planned.hash)
    known = ", ".join(f"{p.arm}/{p.seed}" for p in plan.runs[:8]) + ", …" * (len(plan.runs) > 8)
    raise UsageError(
        f"{experiment} has no run {rest!r}; it has {known}{', …'[: 3 * (len(plan.runs) > 8)]}"
    )


def _run_lines(run: RunFolder, *, follow: bool) -> Iterator[str]:
    """Every attempt in turn; when following, also those that begin meanwhile."""
    shown = 0
    while shown < len(attempts := run.attempts()):
        yield from _attempt_lines(attempts[shown], follow=follow)
        shown += 1


def _attempt_lines(attempt: AttemptFolder, *, follow: bool) -> Iterator[str]:
    lease, offset, live = attempt.lease(), 0, True
    resumed = lease.get("resumed_from")
    begin = f"from step {resumed['step']}" if resumed else "from the start"
    yield f"attempt {attempt.number} on {lease['host']}, {begin}"
    while live:
        live = follow and is_live(attempt)
        records, offset = read_journal(attempt.journal, offset)
        yield from (_line(record) for record in records if record.kind in ("metrics", "event"))
        time.sleep(0.5 if live else 0)
    end = attempt.end()
    if end is not None:
        yield f"{_clock(end['time'])} {end['state']} at step {end['step']} {end['reason']}".rstrip()
    yield from _file(attempt.path / "output.txt")
    yield from _file(attempt.path / "traceback.txt")


def _driver_lines(folder: ExperimentFolder, *, follow: bool) -> Iterator[str]:
    offset = 0
    while True:
        live = follow and has_driver(folder)
        with folder.log.open("rb") as file:
            file.seek(offset)
            data = file.read()
        end = len(data) if not live else data.rfind(b"\n") + 1
        yield from data[:end].decode(errors="replace").splitlines()
        offset += end
        if not live:
            return
        time.sleep(0.5)


def _line(record: Record) -> str:
    values = "  ".join(f"{key} {value:.6g}" for key, value in record.values.items())
    return f"{_clock(record.time)} " + (record.text or f"step {record.step}  {values}")


def _file(path: Path) -> Iterator[str]:
    if path.exists():
        yield from path.read_text(errors="replace").splitlines()


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
