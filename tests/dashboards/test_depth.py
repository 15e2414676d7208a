"""The picture of what each layer does, from evaluations asked for later."""

import xml.etree.ElementTree as ET

from arch_search.records import read_experiment
from arch_search.run_settings import EvaluationSpec
from dashboards.report import make_report, write_report


def knocked_out(layers, ways):
    rows = {n: [] for n in ("layer", "kind", "way", "metric", "whole", "without", "change")}
    for layer in range(layers):
        for way in ways:
            for metric in ("val/token_perplexity", "val/bits_per_byte"):
                row = (layer, "gru", way, metric, 2.0, 2.0 + 0.1 * layer, 0.1 * layer)
                for name, cell in zip(rows, row, strict=True):
                    rows[name].append(cell)
    return rows


def test_a_later_knockout_is_drawn_by_depth(planted, tmp_path):
    root = planted()
    ways = ("removed", "reset_each_token")
    spec = EvaluationSpec(task="knockout", options={"ways": list(ways)})
    for run in read_experiment("planted", root).runs:
        run.folder.write_evaluation(spec, metrics={}, tables={"knockout": knocked_out(8, ways)})
    experiment = read_experiment("planted", root)
    assert [one.spec.task for one in experiment.runs[0].later] == ["knockout"]
    paths = {path.name: path for path in write_report(make_report(experiment), tmp_path)}
    said = " ".join(ET.parse(paths["knockout.svg"]).getroot().itertext())
    assert "mixer removed" in said
    assert "state reset every token" in said
    assert "change of validation bits per byte" in said  # the metric that decides, of two
    assert "What each layer does" in paths["report.html"].read_text()
    assert "What each layer does" in paths["report.md"].read_text()
    assert "mixer removed" in paths["report.html"].read_text()
