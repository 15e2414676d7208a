"""Bits per byte, perplexities and losses by position, against what anyone can work out."""

import math

import numpy as np
import pytest
import torch

from arch_search import losses
from arch_search.errors import UsageError
from arch_search.model import IGNORED, next_token_loss
from arch_search.tasks.language import LossByPosition, Perplexity
from arch_search.tasks.newlines import Newlines
from arch_search.tasks.registry import is_reported, metric_names, resolve

ROUNDING = 1e-8  # of ln 256 as a float32


def run(task, model, context, **options):
    return task(model, context, task.Options(**options))


def test_a_uniform_model_of_bytes_has_eight_bits_per_byte(uniform, context, split):
    found = run(Perplexity(), uniform, context, documents=3, tokens_per_document=500)
    assert found.metrics["val/bits_per_byte"] == pytest.approx(8, rel=ROUNDING)
    assert found.metrics["val/byte_perplexity"] == pytest.approx(256, rel=1e-6)
    assert found.metrics["val/token_perplexity"] == pytest.approx(256, rel=1e-6)
    texts = [bytes(split.document(i)[:500].astype(np.uint8)) for i in range(3)]
    words = sum(len(text.split()) for text in texts)
    assert found.metrics["val/word_perplexity"] == pytest.approx(256 ** (1500 / words), rel=1e-5)
    assert found.tables["documents"]["words"] == [len(text.split()) for text in texts]
    assert "disjoint windows of 32 tokens" in found.convention
    whole = split.manifest.splits["val"].bytes
    said = f"scored: the first 500 tokens of each document, 1,500 of {whole:,} bytes"
    assert found.convention.endswith(said)
    positions = run(LossByPosition(), uniform, context, documents=2)
    for name, value in positions.metrics.items():
        assert value == pytest.approx(8, rel=ROUNDING), name


def test_documents_are_scored_whole_if_asked(uniform, context, split):
    found = run(Perplexity(), uniform, context, documents=1, tokens_per_document=0, window=4096)
    size = split.records[0].bytes
    assert f"scored: whole documents, {size:,} of" in found.convention
    assert found.tables["documents"]["bytes"] == [size]


def test_perplexities_are_those_of_a_loop_over_windows(model_of, context, split):
    model = model_of("gru", "attention")
    found = run(Perplexity(), model, context, documents=2, tokens_per_document=100, window=40)
    nats = 0.0
    for index in range(2):
        tokens = [256, *split.document(index)[:100].tolist()]
        for start in (0, 40, 80):
            piece = torch.tensor([tokens[start : start + 41]])
            logits, _ = model(piece[:, :-1])
            nats += next_token_loss(logits, piece[:, 1:]).item()
    assert found.metrics["val/bits_per_byte"] == pytest.approx(nats / math.log(2) / 200, rel=1e-6)
    assert found.metrics["val/byte_perplexity"] == pytest.approx(math.exp(nats / 200), rel=1e-5)


def test_logits_of_few_tokens_at_a_time_give_the_same_losses(model_of, monkeypatch):
    model = model_of("gru", "attention")
    tokens = torch.randint(0, 257, (3, 50), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, dims=1)
    targets[1, 40:] = IGNORED
    logits, states = model(tokens)
    whole, most = next_token_loss(logits, targets, reduction="none"), []
    compute = model.logits

    def watched(features):
        most.append(len(features) * 257)
        return compute(features)

    monkeypatch.setattr(model, "logits", watched)
    for limit, pieces in ((1 << 20, 1), (257 * 64, 3), (1, 150)):
        monkeypatch.setitem(losses.LOGITS, "cpu", limit)
        found, after = losses.token_losses_and_states(model, tokens, targets)
        assert torch.allclose(found.flatten(), whole, atol=1e-6)
        assert len(most) == pieces
        assert max(most) <= max(limit, 257)
        assert torch.equal(after[0]["state"], states[0]["state"])
        most.clear()
    assert (found[1, 40:] == 0).all()


def test_a_model_gone_wrong_still_has_a_finite_perplexity(model_of, context):
    model = model_of("gru")
    with torch.no_grad():
        model.head.weight.mul_(1e4)
    found = run(Perplexity(), model, context, documents=1, tokens_per_document=50)
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert found.metrics["val/word_perplexity"] == math.exp(700)


@pytest.mark.parametrize("kinds", [("gated_deltanet", "attention"), ("m2rnn",)])
def test_newlines_in_pieces_are_newlines_at_once(kinds, model_of, context):
    model = model_of(*kinds)
    whole = run(Newlines(), model, context, multiple=4, piece=128, buckets=16)
    pieces = run(Newlines(), model, context, multiple=4, piece=24, buckets=16)
    assert pieces.tables["newlines"]["loss"] == pytest.approx(
        whole.tables["newlines"]["loss"], rel=1e-4
    )
    tokens = torch.tensor([[256] + [10] * 128])
    logits, _ = model(tokens[:, :-1])
    nats = next_token_loss(logits, tokens[:, 1:], reduction="none")
    assert whole.metrics["newlines/loss_in_training_length"] == pytest.approx(
        nats[:32].mean().item(), rel=1e-5
    )
    worst = nats[32:].view(-1, 8).mean(dim=1).max().item()
    assert whole.metrics["newlines/loss_worst_beyond"] == pytest.approx(worst, rel=1e-5)
    assert whole.tables["newlines"]["chance"][0] == math.log(257)


def test_evaluations_that_report_one_metric_are_refused():
    with pytest.raises(UsageError, match=r"perplexity and perplexity both report 'val/bits_per_b"):
        resolve(["perplexity", {"perplexity": {"window": 256}}])
    both = resolve(["perplexity", "loss_by_position"])
    assert is_reported("val/word_perplexity", metric_names(both))
    assert not is_reported("val/word_perplexities", metric_names(both))
