"""A planted experiment is found as planted; what is not comparable is refused."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from arch_search.commands.compare import compare as command
from arch_search.compare import compare
from arch_search.errors import UsageError
from arch_search.findings import verdict
from arch_search.plan_spec import FindingSpec
from arch_search.records import curves, read_experiment, results, table
from arch_search.statistics.linear import Estimate


def arm_of(comparison, name):
    return next(outcome for outcome in comparison.arms if outcome.arm == name)


def test_planted_effects_are_found_and_covered(planted):
    comparison = compare("planted", root=planted())
    for arm, effect in (("m2rnn-1-first", -0.06), ("m2rnn-2-spread", -0.11)):
        outcome = arm_of(comparison, arm)
        assert outcome.verdict == "better"
        assert outcome.low <= effect <= outcome.high
        assert outcome.p_simultaneous < 0.05
        assert outcome.permutation_p < 0.05
    untouched = arm_of(comparison, "m2rnn-1-last")
    assert untouched.low <= 0 <= untouched.high
    assert untouched.verdict.startswith("not resolved: a true difference below")
    assert comparison.model is not None
    assert comparison.model.df == 12
    assert comparison.arms[0].arm == "baseline"
    assert any("no evidence that nothing differs" in s for s in comparison.sentences)


def test_equivalence_is_shown_and_not_concluded_from_silence(planted):
    comparison = compare("planted", root=planted(noise=0.0005, smallest_effect=0.005))
    assert arm_of(comparison, "m2rnn-1-last").verdict == "equivalent within 0.5 %"


@pytest.mark.parametrize(
    ("low", "high", "better", "margin", "expected"),
    [
        (-0.3, -0.1, -1, None, "better"),
        (0.1, 0.3, -1, None, "worse"),
        (0.1, 0.3, 1, None, "better"),
        (0.1, 0.3, 0, None, "higher"),
        (0.1, 0.3, -1, 0.5, "worse, by less than the 1 % that matters"),
        (-0.1, 0.3, -1, 0.5, "equivalent within 1 %"),
        (-0.1, 0.3, -1, 0.2, "not resolved: a true difference below 0.4 is easily missed here"),
    ],
)
def test_verdicts(low, high, better, margin, expected):
    inside = margin is not None and max(-low, high) < margin
    found = Estimate(name="a", value=(low + high) / 2, standard_error=0.1, low=low, high=high,
                     p_equivalence=0.01 if inside else 0.3, resolvable=0.4)  # fmt: skip
    assert verdict(found, better=better, margin=margin, share=0.01) == expected


def test_failed_and_unfinished_runs_are_counted(planted):
    root = planted(failed=frozenset({("m2rnn-1-first", 1)}),
                   pending=frozenset({("m2rnn-1-last", 0), ("m2rnn-1-last", 2)}))  # fmt: skip
    comparison = compare("planted", root=root)
    first, last = arm_of(comparison, "m2rnn-1-first"), arm_of(comparison, "m2rnn-1-last")
    assert (first.n, first.failed, first.unfinished) == (4, 1, 0)
    assert (last.n, last.failed, last.unfinished) == (3, 0, 2)
    assert any("1 of 5 runs failed" in s for s in comparison.sentences)
    assert any("1 of 5 (1 to 72 %, p = 1)" in s for s in comparison.sentences)
    assert any("2 of 5 runs are not finished" in s for s in comparison.sentences)
    states = results("planted", root).set_index(["arm", "seed"])["state"]
    assert states["m2rnn-1-first", 1] == "FAILED"
    assert states["m2rnn-1-last", 0] == "PENDING"


ARMS = ("baseline", "m2rnn-1-first", "m2rnn-1-last", "m2rnn-2-spread")


def test_where_every_run_failed_that_is_said(planted):
    every = frozenset((arm, seed) for arm in ARMS for seed in range(2))
    with pytest.raises(UsageError, match=r"has finished, 8 of 8 failed; see"):
        compare("planted", root=planted(seeds=2, failed=every))


def test_arms_that_share_no_seed_with_the_baseline_are_not_said_to_have_one_seed(planted):
    """The baseline has seeds 2 and 3, the others 0 and 1."""
    pending = {("baseline", 0), ("baseline", 1), *((arm, s) for arm in ARMS[1:] for s in (2, 3))}
    said = compare("planted", root=planted(seeds=4, pending=frozenset(pending))).sentences
    assert said[0] == "No arm shares a seed with baseline yet: nothing can be compared."
    assert not any("one seed" in sentence for sentence in said)


def test_one_seed_resolves_nothing_and_says_so(planted):
    comparison = compare("planted", root=planted(seeds=1))
    assert all(o.low is None for o in comparison.arms)
    assert any("one seed" in s for s in comparison.sentences)


def test_equal_seeds_resolve_nothing_and_say_so(planted):
    root = planted(seeds=2)
    for run in read_experiment("planted", root).runs:
        path = run.folder.path / "result.json"
        result = json.loads(path.read_text())
        result["metrics"]["task/accuracy"] = 0.25 if run.arm.is_baseline else 0.5
        path.write_text(json.dumps(result))
    comparison = compare("planted", metric="task/accuracy", root=root)
    first = arm_of(comparison, "m2rnn-1-first")
    assert first.difference == pytest.approx(0.25)
    assert {first.low, first.p_simultaneous, first.permutation_p, first.mean_low} == {None}
    assert first.verdict == "not resolved: the seeds are equal, so noise cannot be estimated"
    assert any("the seeds are equal, so noise cannot" in s for s in comparison.sentences)
    assert not any("a true difference" in s for s in comparison.sentences)


def test_an_arm_without_a_seed_of_the_baseline_waits_and_the_others_go_on(planted):
    lonely = {("m2rnn-1-last", seed) for seed in range(3)}
    others = {(arm, 3) for arm in ("baseline", "m2rnn-1-first", "m2rnn-2-spread")}
    comparison = compare("planted", root=planted(seeds=4, pending=frozenset(lonely | others)))
    assert arm_of(comparison, "m2rnn-1-last").verdict.startswith("not compared")
    assert arm_of(comparison, "m2rnn-2-spread").verdict == "better"


def test_too_few_seeds_for_permutations_are_said(planted):
    comparison = compare("planted", root=planted(seeds=2, noise=0.002))
    assert arm_of(comparison, "m2rnn-2-spread").verdict == "better"
    assert comparison.permutation is not None
    assert comparison.permutation.smallest_p == pytest.approx(6 / 24**2)


def test_an_unequal_environment_is_pointed_out(planted):
    root = planted(seeds=2)
    run = read_experiment("planted", root).runs[1]
    path = run.folder.path / "result.json"
    path.write_text(path.read_text().replace('"cpu"', '"NVIDIA H200"'))
    (warning,) = compare("planted", root=root).control.warnings
    assert warning.startswith("Unequal device between runs: cpu")
    assert "NVIDIA H200 (baseline/1)" in warning


def test_unequal_streams_are_refused_with_the_step(planted):
    def unlike(arm: str, seed: int, step: int) -> str:
        return "ffff" if (arm, seed) == ("m2rnn-1-last", 2) and step > 70 else ""

    with pytest.raises(UsageError, match=r"-last/2 .*after step 70 and no later than step 80"):
        compare("planted", root=planted(unlike_stream=unlike))


def test_other_data_is_refused_unless_it_is_a_factor(planted, tmp_path):
    def short(arm):
        data = replace(arm.data, sequence_length=64 if arm.name == "m2rnn-1-last" else 128)
        return replace(arm, data=data)

    def declared(arm):
        arm = short(arm)
        return replace(arm, factors={**arm.factors, "sequence_length": arm.data.sequence_length})

    with pytest.raises(UsageError, match="differ in sequence_length: 128, 64"):
        compare("planted", root=planted(change_arm=short))
    root = planted(root=tmp_path / "declared", change_arm=declared)
    comparison = compare("planted", root=root)
    assert any("declared sequence_length" in s for s in comparison.control.declared)


def test_a_declared_factor_excuses_no_arms_of_one_level(planted):
    """Arms of equal data must share their stream, whatever another arm declares."""

    def declared(arm):
        data = replace(arm.data, sequence_length=64 if arm.name == "m2rnn-1-last" else 128)
        factors = {**arm.factors, "sequence_length": data.sequence_length}
        return replace(arm, data=data, factors=factors)

    def unlike(arm, seed, step):
        return "ffff" if (arm, seed) == ("m2rnn-1-first", 2) and step > 70 else ""

    with pytest.raises(UsageError, match=r"-first/2 .*after step 70 and no later than step 80"):
        compare("planted", root=planted(change_arm=declared, unlike_stream=unlike))


def test_other_code_for_the_same_blocks_is_refused(planted):
    def changed(arm, seed, spec):
        return replace(spec, code="0ther") if (arm, seed) == ("m2rnn-1-last", 3) else spec

    with pytest.raises(UsageError, match=r"same blocks .*other source code \(c0de and 0ther\)"):
        compare("planted", root=planted(change_spec=changed))


def test_other_blocks_may_have_another_code_hash(planted):
    def by_blocks(arm, _seed, spec):
        return replace(spec, code="b10c" if arm == "baseline" else "c0de")

    assert compare("planted", root=planted(change_spec=by_blocks)).arms


def test_other_evaluation_items_are_refused(planted):
    def fewer(arm: str) -> list[str]:
        return ["1905", "1950"] if arm == "m2rnn-2-spread" else ["1905", "1950", "2001"]

    with pytest.raises(UsageError, match="other documents"):
        compare("planted", root=planted(documents=fewer))


def write_starts(root, change=lambda _arm, _seed, _name: ""):
    """Give every result the hashes of three parameters at the start, equal where they should be."""
    for run in read_experiment("planted", root).runs:
        path, seed = run.folder.path / "result.json", run.planned.seed
        result = json.loads(path.read_text())
        names = ("embedding.weight", "layers.0.mixer.query.weight", "layers.3.mixer.query.weight")
        kinds = [layer.kind for layer in run.planned.spec.model.layers]
        result["starts"] = {
            name: f"{seed}{kinds[0] if '.0.' in name else ''}{change(run.arm.name, seed, name)}"
            for name in names
        }
        path.write_text(json.dumps(result))
    return root


def test_shared_parameters_must_start_alike(planted):
    root = write_starts(planted(seeds=2))
    said = compare("planted", root=root).control.equal
    # embedding and layer 3 in 4 arms; layer 0 in the 3 that kept it: for each of 2 seeds
    assert any("started bit-equal (6 parameter tensors" in s for s in said)

    def redrawn(arm, seed, name):
        return "other" if (arm, seed, name[:8]) == ("m2rnn-1-last", 1, "layers.3") else ""

    with pytest.raises(UsageError, match=r"layers.3.mixer.* differently in baseline/1 and m2rnn-1"):
        compare("planted", root=write_starts(root, redrawn))


def test_readers(planted):
    root = planted()
    frame = results("planted", root)
    assert len(frame) == 20
    assert frame.loc[frame["arm"] == "m2rnn-2-spread", "factor/count"].eq(2).all()
    assert frame["val/bits_per_byte"].between(2.2, 2.9).all()
    assert {"count/parameters", "stream/tokens", "code", "environment/device"} <= set(frame)
    experiment = read_experiment("planted", root)
    logged = curves(experiment)
    once = logged.groupby(["arm", "seed", "step", "metric"]).size()
    assert (once == 1).all()
    assert logged.loc[logged["step"] == 30, "tokens"].eq(30 * 1024).all()
    documents = table(experiment, "documents")
    assert len(documents) == 60
    assert list(documents)[:3] == ["task", "arm", "seed"]


@pytest.mark.parametrize(
    ("name", "metric", "said"),
    [("plantd", None, "Did you mean 'planted'"), ("planted", "val/bits_per_bite", "Did you mean")],
)
def test_misspelt_names_are_answered(planted, name, metric, said):
    with pytest.raises(UsageError, match=said):
        compare(name, metric=metric, root=planted())


def test_command(planted, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(planted().path))
    app = typer.Typer()
    app.command()(command)
    as_json = CliRunner().invoke(app, ["planted", "--json"])
    assert as_json.exit_code == 0, as_json.output
    read = json.loads(as_json.output)
    assert read["arms"][0]["arm"] == "baseline"
    assert math.isfinite(read["arms"][1]["low"])
    out = tmp_path / "table.parquet"
    assert CliRunner().invoke(app, ["planted", "--parquet", str(out)]).exit_code == 0
    assert list(pd.read_parquet(out)["arm"]) == [arm["arm"] for arm in read["arms"]]
    shown = CliRunner().invoke(app, ["planted"])
    assert "not resolved" in " ".join(shown.output.split())


def test_what_the_plan_warned_of_is_said_with_the_result(planted, monkeypatch):
    root = planted()
    folder = root.experiment("planted")
    findings = (
        FindingSpec(level="warning", subject="aliasing", text="count and position move together"),
        FindingSpec(level="residue", subject="sizes", text="parameters differ"),
        FindingSpec(level="limit", subject="places", text="depth and neighbour change together."),
    )
    folder.write_plan(replace(folder.plan(), findings=findings))
    comparison = compare("planted", root=root)
    assert comparison.cautions == ("The plan warned: count and position move together.",)
    assert comparison.limits == ("Depth and neighbour change together.",)
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(root.path))
    app = typer.Typer()
    app.command()(command)
    shown = " ".join(CliRunner().invoke(app, ["planted"]).output.split())
    assert "! The plan warned: count and position move together." in shown
    assert "• Depth and neighbour change together." in shown


def test_comparing_needs_no_torch():
    code = "import sys, arch_search.commands.compare; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"torch", "ray", "mlflow"} & set(loaded.stdout.split())
