"""The lists of tasks behind the language-model tables of arXiv 2603.14360, by name.

From the authors' public fork of lm-evaluation-harness (its scripts). Which eleventh task the
paper's mean of ten leaves out is not said: all are listed, and both means are reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RULER_LENGTHS = (1024, 2048, 4096, 8192, 16384)  # of prompts, in tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Tasks of lm-eval, and the means over them.

    means: name -> the metrics looked for in each task, in this order; tasks that have none of them
    are left out of the mean.
    """

    tasks: tuple[str, ...]
    means: Mapping[str, tuple[str, ...]]


SUITES: dict[str, Suite] = {
    "zero_shot": Suite(
        tasks=(
            *("wikitext", "openbookqa", "piqa", "sciq", "arc_easy", "arc_challenge", "boolq"),
            *("copa", "hellaswag", "winogrande", "race", "lambada_openai"),
        ),
        means={"acc_mean": ("acc",), "acc_norm_mean": ("acc_norm", "acc")},
    ),
    "ruler": Suite(
        tasks=(
            *("niah_single_1", "niah_single_2", "niah_single_3"),
            *("niah_multikey_1", "niah_multiquery", "niah_multivalue"),
        ),
        means={
            f"accuracy_at_{length}_mean": (f"accuracy_at_{length}",) for length in RULER_LENGTHS
        },
    ),
    "retrieval": Suite(
        tasks=(
            *("fda", "swde", "based_nq_2048", "based_triviaqa", "squad_completion", "based_drop"),
        ),
        means={"contains_mean": ("contains",)},
    ),
    "longbench": Suite(
        tasks=tuple(
            f"longbench_{name}"
            for name in (
                *("gov_report", "qmsum", "multi_news", "trec"),
                *("triviaqa", "samsum", "lcc", "repobench-p"),
            )
        ),
        means={"score_mean": ("score",)},
    ),
}


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """The tasks that names and suites stand for, each once, in their order."""
    every = [task for name in names for task in (SUITES[name].tasks if name in SUITES else (name,))]
    return tuple(dict.fromkeys(every))


def suite_means(names: Sequence[str], metrics: Mapping[str, float]) -> dict[str, float]:
    """The means of the suites among `names`, from metrics named lm_eval/<task>/<metric>.

    A mean over a suite of which a task is absent would be another number: it is left out.
    """
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for name in names if name in SUITES):
        suite = SUITES[name]
        if not all(any(m.startswith(f"lm_eval/{task}/") for m in metrics) for task in suite.tasks):
            continue
        for mean, wanted in suite.means.items():
            keys = [[f"lm_eval/{task}/{metric}" for metric in wanted] for task in suite.tasks]
            found = [next(metrics[k] for k in some if k in metrics)
                     for some in keys if any(k in metrics for k in some)]  # fmt: skip
            if found:
                means[f"lm_eval/{name}/{mean}"] = sum(found) / len(found)
    return means
