"""`arch-search inspect`: a trained model's states through time."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from rich.table import Table

from arch_search.commands.data import read_spec
from arch_search.commands.screen import screen
from arch_search.errors import UsageError
from arch_search.state_analysis.collapse import FACTOR
from arch_search.storage import Root

if TYPE_CHECKING:  # torch, which the list of commands does without
    from arch_search.model import LanguageModel
    from arch_search.state_analysis.mitigations import Mitigation
    from arch_search.state_analysis.prompts import TextSource

MITIGATIONS = ("forget", "step", "norm", "window")
PIECES = 128  # of the whole length, if --piece does not say otherwise
Prompt = Literal["text", "newlines", "both"]


def inspect(
    model: Annotated[str, typer.Argument(metavar="RUN", help="experiment/arm/seed, a run's hash, a "
                                         "checkpoint's folder, or an import's name.")],
    step: Annotated[int | None, typer.Option("--step", help="A run's checkpoint of this step; the "
                                             "last one if not given.")] = None,
    prompt: Annotated[Prompt, typer.Option("--prompt")] = "both",
    multiple: Annotated[int, typer.Option("--multiple", min=2, help="How far to look, in training "
                                          "lengths.")] = 16,
    training_length: Annotated[int | None, typer.Option("--training-length", min=1, help="Tokens "
                               "in a row in training; needed for an import that does not say it."
                               )] = None,
    piece: Annotated[int | None, typer.Option("--piece", min=1, help="Tokens between two looks."
                                              )] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Texts looked at together.")] = 8,
    factor: Annotated[float, typer.Option("--factor", help="Collapse: loss over this many times "
                                          "the largest within the training length.")] = FACTOR,
    mitigate: Annotated[list[str] | None, typer.Option("--mitigate", help="'all', or one of forget"
                        "[:KEEP:WRITE], step[:FACTOR], norm[:MULTIPLE[:EVERY]], window[:TOKENS]; "
                        "may be given several times.")] = None,
    text: Annotated[Path | None, typer.Option("--text", help="A text file in place of the run's "
                                              "held-out documents.")] = None,
    tokenizer: Annotated[str, typer.Option("--tokenizer", help="For --text, as in "
                                           "file=tokenizer.json.")] = "bytes",
    device: Annotated[str, typer.Option("--device", help="As torch names it.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the files; by default "
                                             "inspections/ under the root.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:  # fmt: skip
    """A model's states through time: norms, memory, what drives them, and whether they collapse."""
    from arch_search.commands.device import named_device
    from arch_search.state_analysis.inspection import inspect_model
    from arch_search.state_analysis.prompts import of_file, of_model
    from arch_search.stored_model import find_stored_model
    from dashboards.inspection import (
        COLUMNS,
        mitigation_rows,
        open_folder,
        sentences,
        summary,
        write_inspection,
    )

    if not 0 < factor < math.inf:
        raise UsageError(f"--factor {factor:g}: expected a finite number above 0")
    root = Root()
    stored = find_stored_model(root, model, step=step)
    trained_at = training_length or stored.training_length
    if not trained_at:
        raise UsageError(f"{model} does not say how long its training rows were; give "
                         "--training-length")  # fmt: skip
    source = of_file(text, read_spec(tokenizer.split(","))) if text else of_model(stored, root.path)
    try:
        loaded = stored.load(named_device(device))
    except RuntimeError as error:
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from None
    length = multiple * trained_at
    prompts = _prompts(source, prompt, length, batch)
    changes = [
        _mitigation(word, loaded, next(iter(prompts.values()))[:, :trained_at], device)
        for word in _words(mitigate or [])
    ]
    folder = open_folder(out or root.path / "inspections" / stored.identity.replace("@", "-"))
    try:
        found = inspect_model(
            loaded, prompts, training_length=trained_at, factor=factor, mitigations=changes,
            piece=piece or max(min(length // PIECES, trained_at // 4), 1), device=device,
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error)) from None
    files = write_inspection(found, stored, folder)
    if as_json:
        print(json.dumps({**summary(found, stored), "files": [str(file) for file in files]}))
        return
    for sentence in sentences(found):
        screen().print(sentence)
    if rows := mitigation_rows(found):
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in COLUMNS.values():
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        screen().print(table)
    print(files[0])


def _prompts(
    source: "TextSource", prompt: Prompt, length: int, batch: int
) -> dict[str, np.ndarray]:
    prompts = {}
    if prompt in ("text", "both"):
        prompts["text"] = source.text(length, batch)
    if prompt in ("newlines", "both"):
        prompts["newlines"] = source.newlines(length)
    return prompts


def _words(given: list[str]) -> list[str]:
    return list(
        dict.fromkeys(w for word in given for w in (MITIGATIONS if word == "all" else [word]))
    )


def _mitigation(
    word: str, model: "LanguageModel", calibration: np.ndarray, device: str
) -> "Mitigation":
    """'forget:0.999:0.75' and so on. Raises UsageError."""
    import torch

    from arch_search.state_analysis.mitigations import (
        ConstantStep,
        ForgetMore,
        NormaliseState,
        Window,
        norm_caps,
    )

    name, *numbers = word.split(":")
    try:
        values = [float(number) for number in numbers]
        match name, values:
            case "forget", [] | [_] | [_, _]:
                return ForgetMore(**dict(zip(("keep", "write"), values, strict=False)))
            case "step", [] | [_]:
                return ConstantStep(**dict(zip(("factor",), values, strict=False)))
            case "window", [] | [_]:
                return Window(tokens=_whole(values[0]) if values else calibration.shape[1])
            case "norm", [] | [_] | [_, _]:
                multiple, every, *_ = (*values, *(1.0, 1.0)[len(values) :])
                tokens = torch.from_numpy(calibration).to(device)
                return NormaliseState(
                    caps=norm_caps(model, tokens), multiple=multiple, every=_whole(every)
                )
    except ValueError as error:
        raise UsageError(f"--mitigate {word}: {error}") from None
    raise UsageError(
        f"--mitigate {word!r}: expected all, forget[:KEEP:WRITE], step[:FACTOR], "
        "norm[:MULTIPLE[:EVERY]] or window[:TOKENS]"
    )


def _whole(number: float) -> int:
    if not number.is_integer():
        raise ValueError(f"{number:g} tokens; expected a whole number")
    return int(number)
