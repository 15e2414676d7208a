"""`lm_eval` in an experiment's `evaluate:`: any registered task of lm-evaluation-harness."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from arch_search.data import Split
from arch_search.data.encoding import tokenizer_of
from arch_search.errors import UsageError
from arch_search.experiment import nearest
from arch_search.extras import how_to_install
from arch_search.generation import Inference
from arch_search.model import LanguageModel
from arch_search.tasks.base import Evaluation, EvaluationContext, Task
from arch_search.tasks.harness.suites import SUITES, expand, suite_means

SHORTEST = 1_024  # tokens of a prompt that lm-eval's own generator of RULER can fill


def _absolute(path: str) -> str:
    """Where it is from here: a worker may stand in another folder."""
    return str(Path(path).expanduser().absolute()) if path else ""


Folder = Annotated[str, AfterValidator(_absolute)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LmEvalOptions:
    """What is asked, and how; the defaults are lm-eval's own.

    tasks: names of lm-eval, of a suite (zero_shot, ruler, retrieval, longbench), or of `include`.
    include: folders of task files (YAML).   data: a folder of data sets, <owner>/<name> each.
    download: ask the hub for data that are not there.   limit: items of each task; 0: all.
    shots: examples before each item; None: the task's own number.
    max_length: tokens seen at once by every model, recurrent ones too.
    begin: put the end-of-document token before each text.
    lengths: of RULER's prompts, in tokens; 1024 to 16384 if not given.
    batch: sequences at once; 0: as many as fit.
    """

    tasks: tuple[str, ...] = ()
    include: tuple[Folder, ...] = ()
    data: Folder = ""
    download: bool = False
    limit: NonNegativeInt = 0
    shots: NonNegativeInt | None = None
    max_length: PositiveInt = 4_096
    begin: bool = False
    lengths: tuple[PositiveInt, ...] = ()
    batch: NonNegativeInt = 0
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1234  # as NumPy takes it


class LmEval(Task):
    """Scores of lm-evaluation-harness, each as lm_eval/<task>/<metric>; absent data are said."""

    Options = LmEvalOptions

    def metric_names(self, options: LmEvalOptions) -> tuple[str, ...]:
        suites = tuple(name for name in options.tasks if name in SUITES)
        return tuple(f"lm_eval/{name}/" for name in (*expand(options.tasks), *suites))

    def check(self, split: Split, sequence_length: int, options: LmEvalOptions) -> None:
        """Raises UsageError: lm-eval is missing, no task is named, or one that does not exist."""
        if not options.tasks:
            raise UsageError(
                "evaluate.lm_eval.tasks names none; give tasks of lm-eval, or a suite: "
                f"{', '.join(SUITES)}"
            )
        if find_spec("lm_eval") is None:
            raise UsageError(
                f"evaluate.lm_eval needs the package lm-eval; {how_to_install('eval')}"
            )
        if options.lengths and min(options.lengths) < SHORTEST:
            raise UsageError(
                f"evaluate.lm_eval.lengths: {min(options.lengths)} tokens are too few for RULER's "
                f"prompts, whose generator would never end; give {SHORTEST} or more, or evaluate "
                "[needles], which has short forms"
            )
        for kind, folders in (("include", options.include), ("data", (options.data,))):
            for folder in folders:
                if folder and not Path(folder).is_dir():
                    raise UsageError(f"evaluate.lm_eval.{kind}: no folder {folder}")
        tokenizer_of(split.manifest)
        from arch_search.tasks.harness.running import known_tasks

        known = known_tasks(options.tasks, options.include)
        for name in expand(options.tasks):
            if name not in known:
                raise UsageError(
                    f"evaluate.lm_eval.tasks: lm-eval has no task, group or tag {name!r}; "
                    f"{nearest(name, _close(name, [*known, *SUITES]))}"
                )

    def __call__(
        self, model: LanguageModel, context: EvaluationContext, options: LmEvalOptions
    ) -> Evaluation:
        """Each task in turn. Those whose data are absent are said once, and harm no other."""
        from arch_search.tasks.harness.model import HarnessModel
        from arch_search.tasks.harness.running import Absent, run_task

        manifest = context.split.manifest
        inference = Inference(
            model=model, device=context.device, precision=context.precision, batch=options.batch,
            tick=context.tick,
        )  # fmt: skip
        asked = HarnessModel(
            inference, tokenizer_of(manifest), max_length=options.max_length, begin=options.begin,
            seed=options.seed,
        )  # fmt: skip
        cache = manifest.folder.parents[1] / "cache"
        found = [run_task(name, asked, options, cache) for name in expand(options.tasks)]
        absent = [one for one in found if isinstance(one, Absent)]
        done = [one for one in found if not isinstance(one, Absent)]
        if absent:
            listed = "; ".join(f"{one.task} ({one.reason})" for one in absent)
            rest = "the rest is evaluated" if done else "nothing is left to evaluate"
            context.say(f"lm_eval: left out, {rest}: {listed}")
        metrics = {
            row["name"]: row["value"] for one in done for row in one.rows
            if row["value"] is not None
        }  # fmt: skip
        return Evaluation(
            metrics={**metrics, **suite_means(options.tasks, metrics)},
            tables={
                "lm_eval": _columns([row for one in done for row in one.rows]),
                "lm_eval_items": _columns([row for one in done for row in one.items]),
                "lm_eval_absent": _columns([{"task": a.task, "reason": a.reason} for a in absent]),
            },
            convention=_convention(options),
        )


def _convention(options: LmEvalOptions) -> str:
    from importlib.metadata import version

    before = "the end-of-document token before each" if options.begin else "nothing before them"
    return (
        f"lm-eval {version('lm-eval')}; at most {options.max_length} tokens at once, {before}; "
        "longer contexts cut at their beginning, rolling windows disjoint; contexts read once"
    )


def _close(name: str, known: Sequence[str]) -> list[str]:
    """Some of thousands of names: those most alike, else the suites."""
    return difflib.get_close_matches(name, known, n=6) or list(SUITES)


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, all of one set of keys."""
    return {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
