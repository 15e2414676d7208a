"""Documents packed into rows, with nothing of one seen by the next where that is asked for."""

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arch_search.data import TrainingStream, find_corpus, open_split, prepare
from arch_search.micro_batches import accumulate_gradients
from arch_search.model import LanguageModel, build_model, next_token_loss
from arch_search.spec import LayerSpec, ModelSpec
from blocks.registry import resolve_options


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Many short documents, as bytes."""
    folder = tmp_path_factory.mktemp("short")
    text = next(iter(find_corpus("sotu").documents())).text
    for number in range(60):
        start = 40 * number
        (folder / f"{number:02d}.txt").write_bytes(text[start : start + 5 + number % 40])
    return open_split(prepare({"folder": str(folder)}, "bytes", folder / "root"), "train")


@settings(max_examples=50, deadline=None)
@given(length=st.integers(1, 200), step=st.integers(0, 50), seed=st.integers(0, 5))
def test_resets_stand_at_the_ends_from_which_a_document_is_predicted(short, length, step, seed):
    stream = TrainingStream(short, sequence_length=length, batch=3, seed=seed)
    tokens, resets = stream.batch(step), stream.resets(step)
    assert (resets.shape, resets.dtype) == ((3, length), np.bool_)
    assert np.array_equal(resets, tokens[:, :-1] == short.manifest.end_of_document)


def test_without_an_end_before_it_a_document_is_reset_at_its_first_token(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [[1, 2, 3], [4], [5, 6, 256], [7, 8]]
    for split in ("train", "val"):
        datasets.Dataset.from_dict({"input_ids": rows}).save_to_disk(tmp_path / split)
    places = {split: str(tmp_path / split) for split in ("train", "val")}
    split = open_split(prepare({"tokenised": places}, "bytes", tmp_path / "root"), "train")
    stream = TrainingStream(split, sequence_length=4, batch=50, seed=0)
    tokens, resets = stream.batch(0)[:, :-1], stream.resets(0)
    assert set(tokens[resets]) == {1, 4, 5, 256}
    assert not set(tokens[resets]) & set(tokens[~resets])


def _model(kind: str) -> LanguageModel:
    options = resolve_options(kind, {}, width=32)
    layer = LayerSpec(kind=kind, options=asdict(options), mlp_width=32)
    spec = ModelSpec(layers=(layer, layer), width=32, vocabulary=257, tie_embeddings=True)
    return build_model(spec, seed=0)


@pytest.mark.parametrize("kind", ["gated_deltanet", "attention", "m2rnn"])
def test_with_resets_each_document_is_predicted_as_if_it_stood_alone(short, kind):
    stream = TrainingStream(short, sequence_length=96, batch=2, seed=0)
    tokens, resets = torch.from_numpy(stream.batch(0)), torch.from_numpy(stream.resets(0))
    model = _model(kind)
    packed, _ = model(tokens[:, :-1], reset=resets)
    unlike, _ = model(tokens[:, :-1])
    for row in range(2):
        begins = [0, *torch.nonzero(resets[row]).flatten().tolist(), 96]
        for begin, end in itertools.pairwise(begins):
            if begin < end:
                alone, _ = model(tokens[row : row + 1, begin:end])
                torch.testing.assert_close(packed[row, begin:end], alone[0], atol=2e-5, rtol=1e-4)
    assert (packed - unlike).abs().max() > 1e-3


def test_the_pieces_of_a_batch_keep_their_resets(short):
    stream = TrainingStream(short, sequence_length=64, batch=6, seed=1)
    tokens, resets = torch.from_numpy(stream.batch(0)), torch.from_numpy(stream.resets(0))
    gradients = {}
    for micro in (0, 1, 4):
        model = _model("gated_deltanet")
        loss = accumulate_gradients(model, tokens, micro, "float32", resets)
        expected = next_token_loss(model(tokens[:, :-1], reset=resets)[0], tokens[:, 1:])
        assert float(loss) == pytest.approx(float(expected.detach()) / tokens[:, 1:].numel())
        gradients[micro] = model.embedding.weight.grad
    for micro in (1, 4):
        torch.testing.assert_close(gradients[micro], gradients[0], atol=1e-6, rtol=1e-4)
