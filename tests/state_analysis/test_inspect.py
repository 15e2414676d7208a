"""`arch-search inspect` end to end on a model that was imported, and what it refuses."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from arch_search.cli import make_app
from arch_search.errors import UsageError
from arch_search.model import LanguageModel, build_model
from arch_search.spec import LayerSpec, ModelSpec
from arch_search.state_analysis.inspection import inspect_model
from arch_search.state_analysis.mitigations import ForgetMore, Window
from arch_search.state_analysis.prompts import of_file
from arch_search.storage import Root
from arch_search.stored_model import keep_imported
from dashboards.state_figures import CAPTIONS

BYTES = 257


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCH_SEARCH_ROOT", str(tmp_path / "root"))
    torch.set_num_threads(1)
    return Root(tmp_path / "root").make()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i} of a text that goes on\n" for i in range(80)))
    return path


def keep(root, name, *kinds) -> LanguageModel:
    """A model at its start, 16 tokens a row, under a name."""
    layers = tuple(LayerSpec(kind=kind, options={}, mlp_width=16) for kind in kinds)
    spec = ModelSpec(layers=layers, width=16, vocabulary=BYTES, tie_embeddings=True)
    model = build_model(spec, seed=0)
    keep_imported(root, name, model, {"training_length": 16})
    return model


def inspect(*words):
    return CliRunner().invoke(
        make_app(["inspect"]), ["inspect", *map(str, words)], catch_exceptions=False
    )


def test_all_that_an_inspection_writes(root, text, tmp_path):
    keep(root, "mixed", "mamba2", "gated_deltanet", "gru", "attention")
    out = tmp_path / "out"
    done = inspect("mixed", "--text", text, "--batch", 1, "--mitigate", "all", "--out", out,
                   "--multiple", 4, "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["collapse"].keys() == {"text", "newlines"}
    assert not found["collapse"]["text"]["found"]  # a model at its start is equally bad everywhere
    assert "layer 2 (gru)" in found["refused"]["window"]
    assert "layer 1 (gated_deltanet): only Mamba-2" in found["refused"]["step"]
    assert {row["mitigation"] for row in found["mitigations"]} == {"none", "norm 1"}
    assert (out / "inspection.html").read_text().count("<svg") == len(CAPTIONS)
    for name in CAPTIONS:
        assert (out / f"{name}.svg").read_text().startswith("<svg"), name
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
    states = pd.read_parquet(out / "states.parquet")
    assert set(states["layer"]) == {0, 1, 2}  # attention's cache is no state of fixed size
    assert {"mean", "variance", "norm", "outlier_rows"} <= set(states)
    drives = pd.read_parquet(out / "drives.parquet")
    assert {"dt", "B", "x", "b", "k", "v", "forget", "recall"} <= set(drives["input"])


def test_mitigations_are_compared_on_the_same_text(root):
    model = keep(root, "linear", "mamba2")
    with torch.no_grad():  # off its start, where the state hardly counts, and slow to forget
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        model.layers[0].mixer.decay.A_log.fill_(-6.0)
    prompts = {"text": np.random.default_rng(0).integers(0, BYTES, (2, 65))}
    changes = [Window(tokens=16), ForgetMore(keep=1.0, write=1.0)]
    found = inspect_model(model, prompts, training_length=16, piece=4, mitigations=changes)
    none, window, nothing = found.tables["mitigations"].to_dict("records")
    assert (none["mitigation"], none["times_slower"]) == ("none", 1.0)
    assert window["damage_in_training_length"] == pytest.approx(0, abs=1e-6)  # it reaches as far
    assert window["loss_beyond"] != none["loss_beyond"]
    assert nothing["loss_beyond"] == pytest.approx(none["loss_beyond"], abs=1e-6)
    assert window["times_slower"] > 0
    assert set(found.mitigated_losses["mitigation"]) == {"none", "window 16", "forget 1, 1"}
    with pytest.raises(ValueError, match="more tokens than the training length"):
        inspect_model(model, prompts, training_length=64, piece=4)


def test_what_inspect_refuses(root, text):
    keep(root, "small", "gru")
    with pytest.raises(UsageError, match="was not trained on a corpus here; give --text"):
        inspect("small")
    with pytest.raises(UsageError, match=r"--mitigate 'sleep'.*forget\[:KEEP"):
        inspect("small", "--text", text, "--mitigate", "sleep", "--multiple", 2)
    with pytest.raises(UsageError, match="tokens, too few for 16,000"):
        inspect("small", "--text", text, "--multiple", 1000)
    with pytest.raises(UsageError, match="no run has a hash"):
        inspect("nowhere", "--text", text)
    (root.path / "imports" / "small" / "model.json").unlink()
    with pytest.raises(UsageError, match="nothing that says of which model"):
        inspect(root.path / "imports" / "small", "--text", text)


def test_each_multiple_of_a_norm_is_a_row_of_its_own(root, text):
    keep(root, "small", "gru")
    done = inspect("small", "--text", text, "--multiple", 2, "--batch", 1, "--prompt", "text",
                   "--mitigate", "norm:0.1", "--mitigate", "norm:1", "--mitigate", "norm:1:4",
                   "--json")  # fmt: skip
    rows = {row["mitigation"]: row["loss_beyond"] for row in json.loads(done.stdout)["mitigations"]}
    assert list(rows) == ["none", "norm 0.1", "norm 1", "norm 1 every 4"]
    assert rows["norm 0.1"] != rows["norm 1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((("--mitigate", f"norm:{m}"), "expected a finite multiple above 0")
          for m in ("0", "-1", "nan", "inf", "1:0", "1:-2")),
        (("--mitigate", "norm:1:1.5"), "expected a whole number"),
        (("--mitigate", "window:inf"), "expected a whole number"),
        *((("--factor", f), "--factor .*: expected a finite number above 0")
          for f in ("-1", "0", "nan", "inf")),
        (("--out", "/proc/x"), "cannot write /proc/x: No such file"),
        (("--out", "/dev/null"), "cannot write /dev/null: File exists"),
        (("--device", "nowhere"), "--device nowhere: "),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(root, text, words, said):
    keep(root, "small", "gru")
    with pytest.raises(UsageError, match=said) as refused:
        inspect("small", "--text", text, "--multiple", 2, *words)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line(root, text):
    keep(root, "small", "gru")
    with pytest.raises(UsageError, match="--device cuda: "):
        inspect("small", "--text", text, "--multiple", 2, "--device", "cuda")


def test_a_folder_that_cannot_be_written_to_in_the_end_is_one_line(root, text, tmp_path):
    keep(root, "small", "gru")
    (tmp_path / "out" / "inspection.html").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"cannot write .*out: Is a directory"):
        inspect("small", "--text", text, "--multiple", 2, "--out", tmp_path / "out")


def test_rows_of_text_come_out_of_the_middle_of_documents(text):
    source = of_file(text, "bytes")
    body = source.documents(0)
    [row] = source.text(100, 4)
    middle = (len(body) + 1 - 101) // 2
    assert row.tolist() == body[middle - 1 :][:101].tolist()
    assert source.newlines(3).tolist() == [[256, 10, 10, 10]]
