"""The decoder of MAD's compression task: what it reads, and that a model with it learns."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from arch_search.autoencoder import Autoencoder, sinusoids
from arch_search.errors import UsageError
from arch_search.model import IGNORED, LanguageModel, build_model, count_model
from arch_search.planning import make_plan
from arch_search.spec import LATER, LayerSpec, ModelSpec, RunSpec, content_hash
from arch_search.storage import Root
from arch_search.synthetic.base import examples
from arch_search.synthetic.registry import generator, read_task
from blocks.registry import resolve_options

FILE = """
defaults: [task]
name: squeeze
baseline: {}
model: {pattern: gru, width: 32, mlp: {width: 32}, decoder: autoencoder}
data: {task: compression, sequence_length: 8, batch: 8}
train: {tokens: 1K}
primary: {metric: task/balanced_accuracy}
"""


def model_of(width=32, vocabulary=4):
    options = {"head_dim": 32, "heads": 1, "convolution": 0}
    options = asdict(resolve_options("gru", options, width=width))
    spec = ModelSpec(
        layers=(LayerSpec(kind="gru", options=options, mlp_width=32),),
        width=width,
        vocabulary=vocabulary,
        tie_embeddings=False,
        decoder="autoencoder",
    )
    return spec, build_model(spec, seed=0)


def test_positions_are_sines_and_cosines():
    place = sinusoids(3, 4, torch.device("cpu"))
    expected = [[f(t / 10_000 ** (i / 2)) for f in (np.sin, np.cos) for i in range(2)]
                for t in range(3)]  # fmt: skip
    np.testing.assert_allclose(place, expected, atol=1e-6)
    assert sinusoids(2, 5, torch.device("cpu")).shape == (2, 5)


def test_every_answer_is_read_off_the_last_position_alone():
    decoder = Autoencoder(8)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 5, 8)
    other = torch.cat([torch.randn(2, 4, 8), x[:, -1:]], dim=1)
    assert torch.equal(decoder(x), decoder(other))
    assert not torch.allclose(decoder(x)[:, 0], decoder(x)[:, 1])


def test_it_is_counted():
    spec, model = model_of()
    counts = count_model(spec, 8)
    assert counts.parameters == sum(p.numel() for p in model.parameters())
    without = count_model(replaced(spec), 8)
    assert counts.parameters - without.parameters == 2 * 32 * 32
    assert counts.forward_flops_per_token - without.forward_flops_per_token == 4 * 32 * 32


def replaced(spec):
    from dataclasses import replace

    return replace(spec, decoder="none")


@pytest.mark.slow
def test_a_gru_learns_to_compress_three_letters():
    _, model = model_of()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(400):
        tokens, targets = drawn(step, 64, "train")
        loss = model.loss(tokens, targets) / (targets != IGNORED).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    tokens, targets = drawn(0, 200, "evaluate")
    asked = targets != IGNORED
    right = (model(tokens)[0].argmax(-1) == targets)[asked]
    assert right.float().mean() > 0.6  # chance is 1 / 3


def drawn(step, count, purpose):
    name, options = read_task({"compression": {"vocabulary": 4}})
    found = examples(
        generator(name), name, options, length=5,
        indices=np.arange(step * count, (step + 1) * count), purpose=purpose, seed=0,
    )  # fmt: skip
    return torch.from_numpy(found.tokens), torch.from_numpy(found.targets)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.decoder=none"], "the task compression needs autoencoder"),
        (["data.task=selective_copying", "data.sequence_length=64"], "copying needs none"),
    ],
)
def test_the_decoder_is_for_this_task_alone(tmp_path, overrides, said):
    path = tmp_path / "squeeze.yaml"
    path.write_text(FILE)
    root = Root(tmp_path / "root").make()
    assert make_plan(path, root).arms[0].model.decoder == "autoencoder"
    with pytest.raises(UsageError, match=said):
        make_plan(path, root, overrides)


def test_models_without_it_keep_their_hash(tmp_path):
    path = tmp_path / "squeeze.yaml"
    path.write_text(FILE)
    spec = make_plan(path, Root(tmp_path / "root").make()).runs[0].spec
    plain = RunSpec(**{**{f: getattr(spec, f) for f in spec.__slots__},
                       "model": replaced(spec.model)})  # fmt: skip
    content = asdict(plain)
    for part, key, default in LATER:
        if content[part][key] == default:
            del content[part][key]
    assert "decoder" not in content["model"]
    assert plain.hash == content_hash(content)
    assert plain.hash != spec.hash
    assert LanguageModel(plain.model).decoder is None
