"""Thirty and more wrong sweep files: each is one line that says what to do, and nothing runs."""

import pytest

from arch_search.errors import UsageError

from .conftest import BASE, merged, plan_of

SLOTS = {"slots": ["gdn", "m2rnn"], "depth": 4}


def space(**changes):
    return {"sweep": {"space": changes}}


def layout(**changes):
    return {"sweep": {"space": {"layout": {"slots": ..., "depth": ..., **changes}}}}


WRONG = [
    ({"sweep": {"trails": 3}}, "did you mean 'trials'"),
    ({"sweep": {"trials": 0}}, "greater than 0"),
    ({"sweep": {"trials": ...}}, "'sweep.trials' is missing"),
    ({"sweep": {"space": ...}}, "'sweep.space' is missing"),
    ({"sweep": {"sampler": "tpee"}}, "did you mean 'tpe'"),
    ({"sweep": {"sampler": {"name": "tpe", "options": {"n_startup": 3}}}}, "n_startup_trials"),
    ({"sweep": {"sampler": {"nam": "tpe"}}}, "did you mean 'name'"),
    ({"sweep": {"objectives": {"val/bits_per_bite": "minimize"}}}, "'val/bits_per_byte'"),
    ({"sweep": {"objectives": {"val/bits_per_byte": "minimise"}}}, "'minimize' or 'maximize'"),
    ({"sweep": {"objectives": {"val/bits_per_byte": "maximize"}}}, "look for the worst"),
    (
        {"sweep": {"objectives": {"throughput/tokens_per_second": "maximize"}}},
        "count/forward_flops_per_token",
    ),
    ({"sweep": {"rungs": [0.3, 0.1, 1]}}, "rising shares"),
    ({"sweep": {"rungs": [0.1, 0.5]}}, "end with 1"),
    ({"sweep": {"rungs": ["ten%", 1]}}, "is not a share"),
    ({"sweep": {"rungs": [0.01, 1]}}, "rung"),
    ({"sweep": {"decay": 0.9, "warmup": 0.02}}, "leave nothing of the first rung"),
    ({"sweep": {"pruner": {"rule": "hyperband"}}}, "'asha', 'median' or 'none'"),
    ({"sweep": {"pruner": {"reduction": 1}}}, "greater than or equal to 2"),
    ({"sweep": {"immune": 1.5}}, "less than 1"),
    ({"sweep": {"limits": {"count/parameters": "under 3M"}}}, "is not a limit"),
    ({"sweep": {"limits": {"count/paramters": "<= 3M"}}}, "did you mean 'count/parameters'"),
    ({"sweep": {"limits": {"count/parameters": "<= 10"}}}, "nothing in it is within its limits"),
    ({"sweep": {"storage": "study.db"}}, "expected a database's URL"),
    ({"sweep": {"take": ["nothing"]}}, "no experiment 'nothing'"),
    ({"sweep": {"take": ["../elsewhere"]}}, "experiment name '../elsewhere'"),
    ({"sweep": {"sampler": {"name": "tpe", "history": 3}}}, "greater than or equal to 100"),
    ({"sweep": {"enqueue": [{"pattern": "gdn*3"}]}}, "has 3 layers; expected 4"),
    ({"sweep": {"enqueue": [{"pattern": "gdn*3 gru"}]}}, "layer.3 is 'gru'"),
    ({"sweep": {"enqueue": [{"layr.0": "gdn"}]}}, "did you mean 'layer.0'"),
    ({"sweep": {"trials": 1, "enqueue": [{}, {}]}}, "2 layouts for 1 trials"),
    (layout(slots=["gdn", "m2rn"], depth=4), "Did you mean 'm2rnn'"),
    (layout(slots=["gdn", "gdn"], depth=4), "one twice"),
    (layout(slots=["gdn", "attn"]), "depth says how many layers"),
    (layout(counts={"m2rnn": [1]}, depth=4), "counts need fill"),
    (layout(pattern="(x*3", where={"x": ["gdn"]}), "never closed"),
    (layout(pattern="x*3 attn", where={"y": ["gdn"]}), "stands nowhere in the pattern"),
    (layout(pattern="gdn*3 attn"), "needs where"),
    (layout(), "one of slots"),
    (space(options={"m2rnn": {"ky_dim": [3]}}), "did you mean 'key_dim'"),
    (space(options={"m2rnn": {"key_dim": [3, "x"]}}), "key_dim"),
    (space(options={"m2rnn": {"key_dim": [4, 4]}}), "one twice"),
    (space(options={"mamba2": {"heads": [4]}}), "no layer can be 'mamba2'"),
    (space(options={"m2rnn": {"gate": ["sigmoidd"]}}), "sigmoid"),
    (space(width=[-8]), "greater than 0"),
    (space(learning_rate={"low": 1e-2, "high": 1e-3}), "low below high"),
    (space(learning_rate={"low": 0, "high": 1e-3, "log": True}), "above 0"),
    (space(learning_rate={"low": 1e-3, "hgh": 1e-2}), "did you mean 'high'"),
    (
        merged(space(learning_rate={"low": 1e-3, "high": 1e-2}), {"sweep": {"sampler": "grid"}}),
        "grid tries every point",
    ),
    ({"seeds": 3}, "sweep.again.seeds"),
    ({"arms": {"replace": "gdn", "with": "m2rnn"}}, "arms is for an ablation"),
    ({"tune": {"learning_rate": [1e-3, 1e-2]}}, "tune is for an ablation"),
    ({"hold": {"parameters": "1%", "by": "mlp.width", "state": "1%"}}, "names one quantity"),
    ({"train": {"tokens": 512}}, "steps"),
]


@pytest.mark.parametrize("changes, says", WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_file_is_one_line_that_says_what_to_do(root, changes, says):
    with pytest.raises(UsageError) as caught:
        plan_of(root, merged(BASE, changes))
    text = str(caught.value)
    assert says in text
    assert "\n" not in text
    assert not root.runs()
