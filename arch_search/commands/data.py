"""`arch-search data list` and `data prepare`: what is prepared, and preparing more."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from arch_search.data import Manifest, prepare
from arch_search.data.corpora import CORPORA, KINDS
from arch_search.data.manifest import read_manifest
from arch_search.data.tokenizers import KINDS as TOKENIZER_KINDS
from arch_search.data.tokenizers import TOKENIZERS
from arch_search.data.writing import Done, Report
from arch_search.errors import UsageError
from arch_search.storage import Root

data = typer.Typer(help="Corpora and prepared data.", no_args_is_help=True, rich_markup_mode=None)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@data.command("list")
def list_data(as_json: JsonOption = False) -> None:
    """What is prepared under the storage root, with its licence and hash."""
    rows, problems = _prepared(Root().path / "data")
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    console = Console()
    if rows:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in rows[0]:
            table.add_column(column, overflow="fold", no_wrap=column != "licence")
        for row in rows:
            table.add_row(*(escape(_shown(value)) for value in row.values()))
        console.print(table, highlight=False)
    else:
        console.print("Nothing is prepared yet; experiments prepare what they need.")
    for problem in problems:
        console.print(f"Left out: {problem}", style="yellow", markup=False, highlight=False)
    console.print(
        f"Corpora by name: {', '.join(sorted(CORPORA))}; with options: {', '.join(sorted(KINDS))}.",
        f"Tokenizers by name: {', '.join(sorted(TOKENIZERS))}; with options: "
        f"{', '.join(sorted(TOKENIZER_KINDS))}.",
        sep="\n",
        highlight=False,
    )


@data.command("prepare")
def prepare_data(
    corpus: Annotated[
        list[str],
        typer.Argument(metavar="CORPUS", help="A name, or key=value pairs, as in folder=texts."),
    ],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="A name, or as in bpe=4096 or file=tokenizer.json.")
    ] = "bytes",
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Threads; 0: one for each CPU.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Turn a corpus into shards of tokens. Killed, it goes on where it stood when run again."""
    spec, encoder = read_spec(corpus), read_spec(tokenizer.split(","))
    root = Root().make()
    with _progress() as report:
        manifest = prepare(spec, encoder, root.path, workers=workers, report=report)
    row = _row(manifest)
    if as_json:
        print(json.dumps(row, indent=1, ensure_ascii=False))
    else:
        for name, value in row.items():
            print(f"{name}: {_shown(value)}")


def read_spec(words: list[str]) -> str | dict[str, Any]:
    """A corpus or tokenizer as it is typed: a name alone, or the pairs of a mapping.

    Values are YAML, so `split={train: train, val: validation}` is a mapping.

    Raises:
        UsageError: words that are neither.
    """
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    spec: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(
                f"{word!r} is not key=value; give a name alone, or pairs as folder=texts"
            )
        if key in spec:
            raise UsageError(f"{key} is given twice")
        spec[key] = _value(key, value)
    return spec


def _value(key: str, text: str) -> Any:
    """YAML where it is YAML; a pattern such as `*.md`, which YAML takes for an alias, is text."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        if text.startswith(("{", "[")):
            raise UsageError(f"the value of {key} cannot be read: {text}") from None
        return text


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar with the rate, on stderr and only on a terminal."""
    columns = (
        TextColumn("{task.fields[documents]:,} documents"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, documents=0)

        def report(done: Done) -> None:
            if not bar.tasks[task].completed:  # what an earlier process did is no speed of this one
                bar.reset(task, completed=done.bytes)
            bar.update(task, completed=done.bytes, total=done.total_bytes, documents=done.documents)

        yield report


def _prepared(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    rows, problems = [], []
    for path in sorted(folder.glob("[!.]*/manifest.json")):
        try:
            rows.append(_row(read_manifest(path.parent)))
        except UsageError as error:
            problems.append(str(error))
    return rows, problems


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        "corpus": manifest.corpus,
        "tokenizer": manifest.tokenizer,
        "documents": sum(split.documents for split in manifest.splits.values()),
        "training tokens": manifest.splits["train"].tokens,
        "bytes of text": sum(split.bytes for split in manifest.splits.values()),
        "licence": manifest.licence,
        "hash": manifest.hash,
    }


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
