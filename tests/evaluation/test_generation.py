"""Carried states, padding and batches change no score and no token."""

import math
import random

import pytest
import torch

from arch_search.generation import Inference, Sampling, generate
from arch_search.scoring import score_continuations
from blocks.registry import BLOCKS

CPU = torch.device("cpu")
ROUNDING = 1e-6  # of float32: sums of unequal shapes are taken in another order


def prompts_of(count, seed=0):
    drawn = random.Random(seed)
    return [[drawn.randrange(256) for _ in range(drawn.randrange(1, 40))] for _ in range(count)]


def plain_score(model, context, continuation):
    """One sequence, no padding, no state, in one pass."""
    tokens = torch.tensor([[*context, *continuation]])
    logits, _ = model(tokens[:, :-1])
    shares = torch.log_softmax(logits[0], dim=-1)[len(context) - 1 :]
    return sum(shares[i, token].item() for i, token in enumerate(continuation))


def questions(count):
    """Contexts of unequal length, some with one continuation and some with several."""
    drawn = random.Random(3)
    pairs = []
    for context in prompts_of(count, seed=5):
        for _ in range(drawn.choice([1, 4])):
            pairs.append((context, [drawn.randrange(256) for _ in range(drawn.randrange(1, 12))]))
    drawn.shuffle(pairs)
    return pairs


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_scores_are_those_of_one_sequence_at_a_time(kind, model_of):
    model, pairs = model_of(kind, "attention"), questions(6)
    with torch.inference_mode():
        expected = [plain_score(model, *pair) for pair in pairs]
    for batch in (0, 1, 3):
        scores = score_continuations(Inference(model=model, device=CPU, batch=batch), pairs)
        assert [s.nats for s in scores] == pytest.approx(expected, rel=ROUNDING), batch


def test_equal_batches_give_equal_bits(model_of):
    model, pairs = model_of("m2rnn", "gated_deltanet", "attention"), questions(8)
    inference = Inference(model=model, device=CPU)
    assert score_continuations(inference, pairs) == score_continuations(inference, pairs)


def greedy(model, prompt, tokens):
    """Without any state: the whole text anew for each token."""
    text = list(prompt)
    for _ in range(tokens):
        text.append(model(torch.tensor([text]))[0][0, -1].argmax().item())
    return text[len(prompt) :]


@pytest.mark.parametrize("kinds", [("attention",), ("m2rnn", "gru"), ("gated_deltanet", "mamba2")])
def test_carried_states_generate_what_whole_texts_do(kinds, model_of):
    model, prompts = model_of(*kinds), prompts_of(5)
    with torch.inference_mode():
        expected = [greedy(model, prompt, 12) for prompt in prompts]
    assert len({token for text in expected for token in text}) > 12  # it does not repeat itself
    for batch in (0, 1, 2):
        found = generate(Inference(model=model, device=CPU, batch=batch), prompts, tokens=12)
        assert found == expected, batch


def test_a_sequence_ends_where_it_is_over_and_the_others_go_on(model_of):
    model, prompts = model_of("gru"), prompts_of(6)
    inference = Inference(model=model, device=CPU)
    whole = generate(inference, prompts, tokens=20)
    stops = {text[3 + i] for i, text in enumerate(whole)}
    ended = generate(inference, prompts, tokens=20, is_over=lambda grown: grown[-1] in stops)
    for text, full in zip(ended, whole, strict=True):
        first = next(i for i, token in enumerate(full) if token in stops)
        assert text == full[: first + 1]
    assert generate(inference, prompts, tokens=0) == [[]] * 6


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_batch(model_of):
    model, prompts = model_of("gru", "attention"), prompts_of(4)
    sampling = Sampling(temperature=1.0, seed=7)
    once, alone = (
        generate(Inference(model=model, device=CPU, batch=batch), prompts, tokens=10,
                 sampling=sampling)
        for batch in (0, 1)
    )  # fmt: skip
    other = generate(
        Inference(model=model, device=CPU), prompts, tokens=10,
        sampling=Sampling(temperature=1.0, seed=8),
    )  # fmt: skip
    assert once == alone
    assert once != other


def test_tokens_are_drawn_with_their_probabilities():
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = shares.log().expand(4_000, 4)
    drawn = Sampling(temperature=1.0).choose(logits, range(4_000), 0)
    counts = torch.bincount(drawn, minlength=4) / 4_000
    error = 4 * math.sqrt(0.25 / 4_000)
    assert counts.tolist() == pytest.approx(shares.tolist(), abs=error)
    few = Sampling(temperature=1.0, top_p=0.6).choose(logits, range(4_000), 0)
    counts = torch.bincount(few, minlength=4) / 4_000
    assert counts.tolist() == pytest.approx([0.5 / 0.8, 0.3 / 0.8, 0, 0], abs=error)
    cold = Sampling(temperature=0.01).choose(logits[:9], range(9), 0)
    assert cold.tolist() == Sampling().choose(logits, range(4_000), 0)[:9].tolist() == [0] * 9
    with pytest.raises(ValueError, match="temperature -1"):
        Sampling(temperature=-1)
