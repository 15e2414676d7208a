"""Token files of others, read in place: documents, batches and text as in shards made here."""

import struct
from pathlib import Path

import numpy as np
import pytest

from arch_search.data import (
    StreamHash,
    TrainingStream,
    check_files,
    find_corpus,
    load_manifest,
    open_split,
    prepare,
)
from arch_search.data.token_files.pieces import JoinedTokens
from arch_search.errors import UsageError

END = 256
SPLITS = ("train", "val")


@pytest.fixture(scope="module")
def documents(manifest):
    """Some documents of each split as tokens, cut short."""
    splits = {name: open_split(manifest, name) for name in SPLITS}
    return {
        name: [split.document(i)[: 500 + 37 * i] for i in range(12)]
        for name, split in splits.items()
    }


def _flat(texts, dtype):
    return np.concatenate([np.append(text, END) for text in texts]).astype(dtype)


def _nanogpt(folder, documents):
    for split in SPLITS:
        _flat(documents[split], "<u2").tofile(folder / f"{split}.bin")
    return {"nanogpt": str(folder)}


def _llm_c(folder, documents):
    for split in SPLITS:
        for shard, texts in enumerate((documents[split][:5], documents[split][5:])):
            tokens = np.concatenate([np.append(END, text) for text in texts]).astype("<u4")
            head = np.zeros(256, "<i4")
            head[:3] = 20240801, 1, len(tokens)
            path = folder / f"{split}_{shard:06d}.bin"
            path.write_bytes(head.tobytes() + tokens.tobytes())
    return {"nanogpt": {split: str(folder / f"{split}_*.bin") for split in SPLITS}}


def _megatron(folder, documents, dtype="<i4", code=4):
    for split in SPLITS:
        texts = [np.append(text, END).astype(dtype) for text in documents[split]]
        # Each document in two sequences, as sentence splitting makes them.
        sequences = [part for text in texts for part in (text[:100], text[100:])]
        lengths = np.array([len(sequence) for sequence in sequences])
        places = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
        borders = np.arange(len(texts) + 1) * 2
        head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(borders))
        index = head + lengths.astype("<i4").tobytes() + places.astype("<i8").tobytes()
        (folder / f"{split}.idx").write_bytes(index + borders.astype("<i8").tobytes())
        (folder / f"{split}.bin").write_bytes(np.concatenate(sequences).tobytes())
    return {"megatron": {split: str(folder / split) for split in SPLITS}}


def _tokenised(folder, documents):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    names = {"train": "train", "val": "validation"}
    rows = {
        names[split]: datasets.Dataset.from_dict(
            {"input_ids": [[*text.tolist(), END] for text in documents[split]]}, features=features
        )
        for split in SPLITS
    }
    datasets.DatasetDict(rows).save_to_disk(folder, num_shards={"train": 3, "validation": 1})
    return {"tokenised": str(folder)}


FORMATS = [_nanogpt, _llm_c, _megatron, _tokenised]


@pytest.fixture(params=FORMATS, ids=lambda write: write.__name__[1:])
def placed(request, tmp_path, documents):
    """A manifest over files of one of the formats."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    spec = request.param(folder, documents)
    return prepare(spec, "bytes", tmp_path / "root"), spec, folder


def test_documents_are_those_that_were_written(placed, documents):
    manifest, _, _ = placed
    for name in SPLITS:
        split = open_split(manifest, name, verify=True)
        assert split.documents == len(documents[name]) == len(split.offsets) - 1
        for index, text in enumerate(documents[name]):
            assert np.array_equal(split.document(index), text)
            assert (split.records[index].tokens, split.records[index].bytes) == (len(text),) * 2


def test_nothing_is_copied(placed):
    manifest, _, folder = placed
    assert not list(manifest.folder.glob("*.tokens"))
    kept = sum(path.stat().st_size for path in manifest.folder.iterdir())
    paths = {record.path for records in manifest.ranges.values() for record in records}
    assert all(path.startswith(str(folder)) for path in paths)
    assert kept < 10_000


def test_batches_and_hashes_of_text_are_those_of_a_flat_array(placed, documents):
    manifest, _, _ = placed
    split = open_split(manifest, "train")
    ring = np.asarray(split.tokens[0 : len(split.tokens)]).astype(np.int64)
    stream = TrainingStream(split, sequence_length=61, batch=7, seed=3)
    seen = StreamHash(stream)
    for step in range(200):
        batch = stream.batch(step)
        places = (stream.starts(step)[:, None] + np.arange(62)) % len(ring)
        assert np.array_equal(batch, ring[places])
        seen.update(step, batch)
    flat = TrainingStream(split, sequence_length=1, batch=len(ring), seed=0)
    every = StreamHash(flat)
    every.update(0, flat.batch(0))
    assert int(every.text[16:], 16) == sum(map(len, documents["train"]))


def test_files_that_were_moved_are_found_again_and_changed_ones_are_refused(placed, tmp_path):
    manifest, spec, folder = placed
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    with pytest.raises(UsageError, match="is missing; it is read in place"):
        check_files(manifest, contents=False)
    (kind,) = spec
    place = spec[kind]
    shift = lambda text: text.replace(str(folder), str(moved))  # noqa: E731
    there = shift(place) if isinstance(place, str) else {k: shift(v) for k, v in place.items()}
    again = prepare({kind: there, "name": manifest.corpus}, "bytes", tmp_path / "root")
    assert again.hash == manifest.hash
    loaded = load_manifest(tmp_path / "root", manifest.hash)
    assert open_split(loaded, "train", verify=True).document(3)[0] > 0
    path = Path(loaded.ranges["train"][0].path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match="holds other bytes than were written; it is read in"):
        open_split(loaded, "train", verify=True)


def test_files_without_splits_have_their_end_held_out(tmp_path, documents):
    texts = [text[:90] for _ in range(4) for text in documents["train"]]
    _megatron(tmp_path, dict.fromkeys(SPLITS, texts))
    manifest = prepare({"megatron": str(tmp_path / "train")}, "bytes", tmp_path / "root")
    names = ("train", "val", "test")
    found = [
        split.document(i)
        for split in (open_split(manifest, name) for name in names)
        for i in range(split.documents)
    ]
    assert all(map(np.array_equal, found, texts))
    assert [manifest.splits[name].documents for name in names] == [44, 2, 2]


def test_joined_parts_read_as_one_array():
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 99, n).astype(np.uint16) for n in (5, 0, 1, 12, 3)]
    joined, whole = JoinedTokens(parts), np.concatenate(parts)
    for start in range(-3, len(whole) + 2):
        for stop in range(-3, len(whole) + 2):
            assert np.array_equal(joined[start:stop], whole[start:stop])
    places = rng.integers(0, len(whole), (4, 6))
    assert np.array_equal(joined[places], whole[places])
    assert joined[7] == whole[7]
    assert len(joined) == len(whole)


def test_a_token_that_the_tokenizer_lacks_is_named_with_its_place(tmp_path):
    for split in SPLITS:
        np.array([5, 6, 300, 256], "<u2").tofile(tmp_path / f"{split}.bin")
    with pytest.raises(UsageError, match=r"token 300 at place 2; tokenizer bytes has 257"):
        prepare({"nanogpt": str(tmp_path)}, "bytes", tmp_path / "root")


def test_a_tokenizer_cannot_be_trained_on_tokens(tmp_path, documents):
    with pytest.raises(UsageError, match="give the tokenizer that made them, not bpe-300"):
        prepare(_nanogpt(tmp_path, documents), {"bpe": 300}, tmp_path / "root")


def test_opposite_ends_of_document_are_no_documents(tmp_path):
    for split in SPLITS:
        np.array([END, 1, 2, END, END, 3, END, END, END], "<u2").tofile(tmp_path / f"{split}.bin")
    manifest = prepare({"nanogpt": str(tmp_path)}, "bytes", tmp_path / "root")
    split = open_split(manifest, "train")
    assert [split.document(i).tolist() for i in range(split.documents)] == [[1, 2], [3]]
    assert [record.tokens for record in split.records] == [2, 1]


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE = [
    (_nanogpt, "train.bin", _cut, "no whole number of uint16 tokens"),
    (_nanogpt, "val.bin", lambda p: p.unlink(), r"no token file at .*val\.bin"),
    (_nanogpt, "val.bin", lambda p: p.write_bytes(b""), "the val split holds no token"),
    (_llm_c, "train_000001.bin", lambda p: p.write_bytes(p.read_bytes()[:-8]), "its header says"),
    (_megatron, "train.bin", _cut, "its index says"),
    (_megatron, "train.idx", lambda p: p.write_bytes(b"x" + p.read_bytes()), "no Megatron index"),
    (_megatron, "train.idx", _cut, "is cut off"),
    (_megatron, "val.idx", lambda p: p.unlink(), r"no file .*val\.idx"),
    (_tokenised, "train/state.json", lambda p: p.write_text("{}"), "does not say which files"),
    (_tokenised, "train/state.json", lambda p: p.unlink(), "has no state.json"),
    (
        _tokenised,
        "train/data-00000-of-00003.arrow",
        lambda p: p.write_bytes(b"garbage" * 9),
        "no readable Arrow file",
    ),
]


@pytest.mark.parametrize("write, name, damage, says", DAMAGE)
def test_damaged_token_files_are_refused_in_one_line(
    write, name, damage, says, tmp_path, documents
):
    spec = write(tmp_path, documents)
    damage(tmp_path / name)
    with pytest.raises(UsageError, match=says) as caught:
        prepare(spec, "bytes", tmp_path / "root")
    assert "\n" not in str(caught.value)


def test_a_dataset_that_names_files_outside_its_folder_is_refused(tmp_path, documents):
    spec = _tokenised(tmp_path, documents)
    state = tmp_path / "train" / "state.json"
    state.write_text(state.read_text().replace("data-00000", "../../data-00000"))
    with pytest.raises(UsageError, match="which lies outside"):
        find_corpus(spec)
