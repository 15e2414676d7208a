"""The stable part of a warm-up-stable-decay run, shared by runs that differ in their length alone.

Up to the step at which a run begins to decay, its weights do not depend on how long it is: runs of
one model, data, seeds, optimiser and warm-up are the same run until then. So a longer one may begin
at the checkpoint where a shorter one left the trunk, and ends as it would have without it, to the
bit on a CPU. Such checkpoints stand under `trunks/<hash>/<step>`; losing them costs time alone.
"""

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from arch_search.files import sync_folder
from arch_search.integrity import damage
from arch_search.spec import RunSpec, content_hash


def trunk_hash(spec: RunSpec) -> str:
    """What decides the weights up to the decay: all of the run but its length and its decay."""
    kept = asdict(spec)
    schedule, train = spec.train.schedule, kept["train"]
    train.pop("tokens")
    train["schedule"] = {"name": schedule.name, "warmup_steps": round(schedule.warmup * spec.steps)}
    return content_hash(kept)


class Trunk:
    """The trunk checkpoints of a run under a storage root."""

    def __init__(self, root: Path, spec: RunSpec) -> None:
        """Raises ValueError for a schedule that has no stable part."""
        if spec.train.schedule.name != "wsd":
            raise ValueError(
                f"schedule {spec.train.schedule.name!r} has no trunk; runs that share one need wsd"
            )
        self.folder = root / "trunks" / trunk_hash(spec)
        self.end = spec.steps - max(round(spec.train.schedule.decay * spec.steps), 1)

    def latest(self) -> tuple[int, Path] | None:
        """(step, folder) of the most advanced checkpoint that this run may go on from.

        One that is damaged is removed: it costs the time that it would have saved.
        """
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        steps = [int(name) for name in names if name.isdigit() and int(name) <= self.end]
        for step in sorted(steps, reverse=True):
            folder = self.folder / f"{step:08d}"
            if not damage(folder):
                return step, folder
            shutil.rmtree(folder, ignore_errors=True)
        return None

    def keep(self, step: int, write: Callable[[Path], None]) -> None:
        """Keep a checkpoint that `write(folder)` fills; whoever comes second changes nothing."""
        target = self.folder / f"{step:08d}"
        if target.exists():
            return
        made = self.folder / f".{uuid.uuid4().hex}"
        made.mkdir(parents=True)
        write(made)
        for path in (*made.iterdir(), made):
            sync_folder(path)
        try:
            os.rename(made, target)
        except OSError:
            if not target.exists():
                raise
            shutil.rmtree(made)
        sync_folder(self.folder)

    def drop(self) -> None:
        """Forget all its checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)
