"""Every experiment file plans at every scale; each with a `smoke` scale is run, compared, drawn.

Files are found by their names: a new one needs no line here. All smoke forms share one Ray session.
"""

import functools
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from arch_search.composition import load_mapping
from arch_search.experiment import load
from arch_search.plan_spec import Plan
from arch_search.planning import make_plan
from arch_search.records import read_experiment
from arch_search.storage import Root
from arch_search.throughput.lane import failures, measure
from dashboards.report import make_report, report_files
from dashboards.throughput import write_picture

from .smoke_forms import ERRORS, SMOKE

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
# In place of mixtures and trained tokenizers, whose preparation takes the most of a minute.
ELSEWHERE = ("data.corpus=elsewhere", "data.tokenizer=elsewhere", "data.vocabulary=4096")


def scales_of(file: Path) -> list[str]:
    return list(yaml.safe_load(file.read_text()).get("scales", {}))


FILES = sorted(EXPERIMENTS.glob("*.yaml"))
FORMS = [(file, scale) for file in FILES for scale in ("", *scales_of(file))]
SMALL = [file for file in FILES if SMOKE in scales_of(file)]
TRAINED = [file for file in SMALL if "throughput" not in yaml.safe_load(file.read_text())]
TIMED = [file for file in SMALL if file not in TRAINED]


def stem(file: Path) -> str:
    return file.stem


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """One for all files, so that a corpus is prepared once."""
    return Root(tmp_path_factory.mktemp("experiments")).make()


@pytest.fixture(scope="module")
def planned(root: Root) -> Callable[[Path, str], Plan]:
    """Each form's plan, made once."""

    def make(file: Path, scale: str) -> Plan:
        chosen = [f"scale={scale}"] if scale else []
        data = load_mapping(file, chosen)["data"]
        costly = any(isinstance(data.get(key), dict) for key in ("corpus", "tokenizer"))
        return make_plan(file, root, [*chosen, *(ELSEWHERE if costly else ())])

    return functools.cache(make)


@pytest.mark.parametrize("file, scale", FORMS, ids=lambda value: getattr(value, "stem", value))
def test_a_file_plans_at_every_scale(file: Path, scale: str, planned: Callable[..., Plan]):
    plan = planned(file, scale)
    assert plan.name == (f"{file.stem}-{scale}" if scale else file.stem)
    assert plan.question
    if plan.sweep is not None:
        return
    assert len({run.hash for run in plan.runs}) == len(plan.runs)
    for contrast in plan.contrasts:
        assert math.isclose(sum(contrast.weights.values()), 0, abs_tol=1e-9)
    if scale:  # the same questions in small, of which a scale may leave some out
        full = {contrast.family for contrast in planned(file, "").contrasts}
        assert {contrast.family for contrast in plan.contrasts} <= full


@pytest.fixture(scope="module")
def errors(root: Root) -> dict[str, str]:
    """Every smoke form has run when this is there: what went wrong, by file."""
    script = Path(__file__).with_name("smoke_forms.py")
    subprocess.run([sys.executable, script, root.path, *TRAINED], check=True, timeout=540)
    return json.loads((root.path / ERRORS).read_text())


@pytest.mark.services
@pytest.mark.parametrize("file", TRAINED, ids=stem)
def test_its_small_form_answers_what_it_asks(file: Path, errors: dict[str, str], root: Root):
    assert file.stem not in errors, errors[file.stem]
    experiment = read_experiment(f"{file.stem}-{SMOKE}", root)
    plan = experiment.plan
    assert not plan.resources.gpus, "a smoke form runs on a CPU"
    assert len(experiment.trained) == len(plan.runs), "a run did not finish"
    made = make_report(experiment)  # compares: unequal streams, items, code or starts raise
    comparison = made.comparison
    control = comparison.control
    assert any("same tokens in the same order" in said for said in control.equal) or any(
        "follows from the declared" in said for said in control.declared
    )
    assert comparison.arms[0].arm == experiment.baseline.name
    if not comparison.rates:
        assert all(arm.mean is not None and math.isfinite(arm.mean) for arm in comparison.arms)
        assert {one.name for one in comparison.contrasts} == {one.name for one in plan.contrasts}
        for one in comparison.contrasts:
            assert one.value is not None
            assert math.isfinite(one.value)
            assert one.low is None or one.low <= one.value <= (one.high or math.inf)
    files = report_files(made)
    assert "layouts.svg" in files
    assert ("contrasts.svg" in files) == any(c.low is not None for c in comparison.contrasts)
    for name, text in files.items():
        if name.endswith(".svg"):
            assert len(" ".join(ET.fromstring(text).itertext()).strip()) > 10, (
                f"{name} says nothing"
            )


@pytest.mark.parametrize("file", TIMED, ids=stem)
def test_its_small_form_is_timed_and_drawn(file: Path, root: Root, tmp_path: Path):
    overrides = [f"scale={SMOKE}"]
    plan = make_plan(file, root, overrides)
    record: dict[str, Any] = measure(
        plan.name, plan.arms, load(file, overrides).throughput, device=torch.device("cpu")
    )
    assert failures(record) == []
    assert set(record["arms"]) == {arm.name for arm in plan.arms}
    assert {cell["kind"] for cell in record["cells"]} == {"train", "prefill", "decode"}
    assert all(cell["low"] <= cell["tokens_per_second"] <= cell["high"] for cell in record["cells"])
    drawn = " ".join(ET.parse(write_picture(record, tmp_path / "speed.svg")).getroot().itertext())
    assert all(arm.name in drawn for arm in plan.arms)
