"""One attempt at a run, seen from the worker that holds it: its lease, journal and checkpoints.

Attempts are numbered. Making the next number's folder is atomic and is the fence: the highest owns
the run, and an earlier one that still lives is told before it writes a checkpoint or a result.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from arch_search.errors import Diverged, Fenced, Stopped
from arch_search.files import dump_json, read_json, sync_folder, write_atomic
from arch_search.integrity import damage
from arch_search.journal import JournalWriter
from arch_search.lease import BEAT_SECONDS, last_step, this_process
from arch_search.redaction import hide_secrets
from arch_search.storage import AttemptFolder, RunFolder

CHECK_SECONDS = 0.5  # how often `check` looks at the disk


class Attempt:
    """Holds a run from `claim` to the end of its `with` block, which says how it ended."""

    def __init__(self, run: RunFolder, folder: AttemptFolder, *, stop_file: Path | None,
                 keep_checkpoints: int) -> None:  # fmt: skip
        self.run, self.folder, self.number = run, folder, folder.number
        self._stop_file = stop_file
        self._keep = keep_checkpoints
        self._journal = JournalWriter(folder.journal)
        self._asked: tuple[Literal["KILLED", "PREEMPTED"], str] | None = None
        self._checked = 0.0
        self._ticks = 0
        self._ended = threading.Event()
        self._beat = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._beat.start()

    @classmethod
    def claim(
        cls,
        run: RunFolder,
        *,
        experiment: str = "",
        stop_file: Path | None = None,
        keep_checkpoints: int = 2,
    ) -> "Attempt":
        """Take the run over: the next number, resuming from the most advanced whole checkpoint.

        Those that are damaged are set aside, and the journal says so.

        Args:
            stop_file: while it exists, `check` stops the run ({"state", "reason"} in it).
            keep_checkpoints: how many of the run's checkpoints stay.
        """
        attempts = run.path / "attempts"
        attempts.mkdir(parents=True, exist_ok=True)
        made = attempts / f".{uuid.uuid4().hex}"
        made.mkdir()
        while True:
            latest, damaged = (None, {}) if run.result() else _newest_whole(run)
            resumed = {"attempt": latest[1], "step": latest[0]} if latest else None
            lease = {**this_process(), "claimed": time.time(), "experiment": experiment}
            lease["resumed_from"] = resumed
            write_atomic(made / "lease.json", dump_json(lease))
            number = max((a.number for a in run.attempts()), default=0) + 1
            folder = run.attempt(number)
            try:
                os.rename(made, folder.path)  # fails if it exists: it is never empty
            except OSError:
                if not folder.path.exists():
                    raise
                continue
            sync_folder(attempts)
            attempt = cls(run, folder, stop_file=stop_file, keep_checkpoints=keep_checkpoints)
            attempt._set_aside(damaged, latest[0] if latest else 0)
            return attempt

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, Stopped | Fenced | Diverged):
            text = "".join(traceback.format_exception(kind, error, trace))
            write_atomic(self.folder.path / "traceback.txt", hide_secrets(text))
        state, reason = _how_it_ended(error)
        diverged = error.step if isinstance(error, Diverged) else -1
        self.end(state, reason, final=isinstance(error, Diverged), step=diverged)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Metrics after optimiser step `step`; log them before that step's checkpoint."""
        self.tick()
        self._journal.append("metrics", step=step, values=values)

    def stream(self, step: int, tokens: str, text: str) -> None:
        """The hashes of what was seen up to `step`, tokens by their beginning: where runs part."""
        self._journal.append("stream", step=step, tokens=tokens, text=text)

    def tick(self) -> None:
        """Say that the run gets on; the heartbeat, another thread, tells it to the driver."""
        self._ticks += 1

    def event(self, text: str) -> None:
        """Something that a reader of the log should know."""
        self._journal.append("event", text=hide_secrets(text))

    def checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Keep a checkpoint: `write(folder)` fills it; it counts when it is complete and on disk.

        Raises Fenced if the run has a later owner.
        """
        self.check_fence()
        self._journal.sync()
        folder = self.folder.path / "checkpoints"
        made = folder / f".{step:08d}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        write(made)
        _sync_tree(made)
        self.check_fence()
        target = folder / f"{step:08d}"
        if target.exists():
            shutil.rmtree(target)
        os.rename(made, target)
        sync_folder(folder)
        self._journal.append("checkpoint", step=step)
        self._prune()

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """(step, folder) to go on from: this attempt's own last, or the one it resumed from."""
        own = self.folder.checkpoints()
        if own:
            return own[-1]
        resumed = self.folder.lease().get("resumed_from")
        if resumed is None:
            return None
        step = resumed["step"]
        attempt = self.run.attempt(resumed["attempt"])
        return step, attempt.path / "checkpoints" / f"{step:08d}"

    def finish(self, result: dict[str, Any]) -> None:
        """Write the run's result, once. Raises Fenced if the run has a later owner or a result."""
        self.check_fence()
        self._journal.sync()
        value = {"state": "FINISHED", **result, "attempt": self.number}
        if not self.run.write_result(value):
            raise Fenced("another attempt has finished the run")

    def check(self) -> None:
        """Raise Stopped if the run was asked to stop, Fenced if it has a later owner. Cheap."""
        self.tick()
        if self._asked is not None:
            raise Stopped(*self._asked)
        now = time.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        self.check_fence()
        if self._stop_file is not None and self._stop_file.exists():
            asked = read_json(self._stop_file) or {}
            raise Stopped(asked.get("state", "KILLED"), asked.get("reason", "asked to stop"))

    def check_fence(self) -> None:
        """Raise Fenced if a later attempt exists, or if this one was given up for lost."""
        if self.run.attempt(self.number + 1).path.exists():
            raise Fenced(f"attempt {self.number + 1} owns the run now")
        if self.folder.end() is not None:
            raise Fenced("this attempt was given up for lost")

    def end(self, state: str, reason: str, *, final: bool = False, step: int = -1) -> None:
        """Stop beating and say how the attempt ended, unless that was said already.

        Args:
            final: the same run would end so again.
            step: where it ended; the last step in the journal if negative.
        """
        self._ended.set()
        self._beat.join()
        self._journal.sync()
        self._journal.close()
        step = last_step(self.folder) if step < 0 else step
        reason = hide_secrets(reason)
        self.folder.write_end(state, reason, step=step, time=time.time(), final=final)

    def request_stop(self, state: Literal["KILLED", "PREEMPTED"], reason: str) -> None:
        """Make the next `check` raise Stopped; safe in a signal handler."""
        self._asked = (state, reason)

    @contextlib.contextmanager
    def stopping_on_sigterm(self) -> Iterator[None]:
        """In the main thread: SIGTERM (a machine taken back) ends the run as PREEMPTED."""
        before = signal.signal(
            signal.SIGTERM, lambda *_: self.request_stop("PREEMPTED", "SIGTERM received")
        )
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _set_aside(self, damaged: dict[Path, str], step: int) -> None:
        """Rename damaged checkpoints, so that none counts or is taken up, and say what was done."""
        for folder, why in damaged.items():
            with contextlib.suppress(FileNotFoundError):  # an earlier owner pruned it meanwhile
                os.rename(folder, folder.with_name(f"{folder.name}.damaged-{self.number}"))
                self.event(
                    f"the checkpoint of step {int(folder.name)} is damaged ({why}): goes on from "
                    + (f"step {step}" if step else "the start")
                )

    def _prune(self) -> None:
        found = [c for attempt in self.run.attempts() for c in attempt.checkpoints()]
        for _, folder in sorted(found)[: -self._keep or None]:
            shutil.rmtree(folder, ignore_errors=True)

    def _keep_beating(self) -> None:
        lease = self.folder.lease()
        while not self._ended.wait(BEAT_SECONDS):
            lease |= {"beat": time.time(), "ticks": self._ticks}
            with contextlib.suppress(OSError):  # a full disk must not end the run from here
                write_atomic(self.folder.path / "lease.json", dump_json(lease), durable=False)


def _newest_whole(run: RunFolder) -> tuple[tuple[int, int, Path] | None, dict[Path, str]]:
    """(step, attempt, folder) of the most advanced whole checkpoint, and what ails those beyond."""
    damaged: dict[Path, str] = {}
    found = [(step, attempt.number, folder)
             for attempt in run.attempts() for step, folder in attempt.checkpoints()]  # fmt: skip
    for checkpoint in sorted(found, reverse=True):
        why = damage(checkpoint[2])
        if not why:
            return checkpoint, damaged
        damaged[checkpoint[2]] = why
    return None, damaged


def _how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """The state and reason that an exception stands for."""
    match error:
        case None:
            return "FINISHED", ""
        case Stopped():
            return error.state, error.reason
        case Fenced():
            return "LOST", str(error)
        case Diverged():
            return "FAILED", str(error)
        case KeyboardInterrupt():
            return "KILLED", "interrupted"
        case _:
            return "FAILED", f"{type(error).__name__}: {error}".strip()


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
