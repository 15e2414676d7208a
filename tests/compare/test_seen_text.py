"""Across a declared factor of the data: the text that is still due, and where it parts."""

import json
from dataclasses import replace

import pytest

from arch_search.compare import compare
from arch_search.errors import UsageError
from arch_search.records import read_experiment

LAST = "m2rnn-1-last"


def varied(**change):
    """One arm reads its data otherwise, and all declare it."""

    def changed(arm):
        data = replace(arm.data, **change) if arm.name == LAST else arm.data
        return replace(arm, data=data, factors=arm.factors | {k: getattr(data, k) for k in change})

    return changed


def write_texts(root, text, *, tokens=None):
    """Give every run the hash of the text that `text(arm, tokens)` says, in journal and result."""
    for run in read_experiment("planted", root).runs:
        path = run.folder.path / "result.json"
        result = json.loads(path.read_text())
        result["stream"]["text"] = text(run.arm.name, result["tokens"])
        if tokens is not None:
            result["stream"]["tokens"] = tokens(run.arm.name, run.planned.seed)
        path.write_text(json.dumps(result))
        journal = run.folder.attempt(1).journal
        records = [json.loads(line) for line in journal.read_text().splitlines()]
        a_step = run.arm.data.batch * run.arm.data.sequence_length
        for record in records:
            if record["kind"] == "stream":
                record["text"] = text(run.arm.name, record["step"] * a_step)
        journal.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_rows_cut_into_other_batches_are_the_same_text(planted):
    root = planted(change_arm=varied(batch=4))
    write_texts(
        root, lambda _, tokens: f"{tokens:032x}", tokens=lambda arm, seed: f"{arm == LAST}{seed}"
    )
    said = [s for s in compare("planted", root=root).control.declared if "Across batch" in s]
    assert said == [
        f"Across batch the same text was seen (hash apart from order: baseline/0 and {LAST}/0)."
    ]


def test_other_text_in_the_same_rows_is_refused_with_the_place(planted):
    root = planted(change_arm=varied(batch=4))
    write_texts(
        root,
        lambda arm, tokens: f"{tokens + (arm == LAST and tokens > 100_000):032x}",
        tokens=lambda arm, seed: f"{arm == LAST}{seed}",
    )
    with pytest.raises(UsageError) as refused:
        compare("planted", root=root)
    assert "differ in batch alone, but saw other text" in str(refused.value)
    assert "part after 92,160 tokens and no later than after 102,400" in str(refused.value)


def test_rows_of_another_length_may_be_other_text_and_it_is_said(planted):
    root = planted(change_arm=varied(sequence_length=64))
    write_texts(root, lambda arm, tokens: f"{5 + (arm == LAST):016x}{tokens:016x}")
    said = [s for s in compare("planted", root=root).control.declared if "Across" in s]
    assert len(said) == 1
    assert said[0].startswith("Across sequence_length other parts of the text were seen (baseline")
    assert "245,760 and 245,760 bytes" in said[0]


def test_resets_leave_each_step_as_it_is(planted):
    root = planted(change_arm=varied(reset=True))
    assert compare("planted", root=root).model is not None
    write_texts(root, lambda *_: "ab" * 16, tokens=lambda arm, seed: f"{arm == LAST}{seed}")
    with pytest.raises(UsageError, match="share data seed 0 but not their token stream"):
        compare("planted", root=root)
