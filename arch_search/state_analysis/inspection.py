"""`inspect`: a model's states under one or more prompts, collapse, and what mitigations do."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from arch_search.losses import token_losses_and_states
from arch_search.model import LanguageModel
from arch_search.state_analysis.collapse import FACTOR, Collapse, find_collapse, in_buckets
from arch_search.state_analysis.mitigations import Mitigation, changed_layers, mitigated
from arch_search.state_analysis.trace import trace_states

REPEATS = 3  # of each timing, in turn
TABLES = ("losses", "states", "histogram", "drives", "memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What was seen.

    tables: those of `Trace`, with a column `prompt`; and `mitigations`, a row for each prompt.
    collapse: by prompt.   mitigated_losses: columns prompt, mitigation, first, position, loss.
    refused: mitigations that are not defined for the model, with the reason.
    """

    length: int
    training_length: int
    piece: int
    tables: dict[str, pd.DataFrame]
    collapse: dict[str, Collapse]
    mitigated_losses: pd.DataFrame
    refused: dict[str, str]


def inspect_model(
    model: LanguageModel,
    prompts: Mapping[str, np.ndarray],
    *,
    training_length: int,
    piece: int,
    factor: float = FACTOR,
    mitigations: Sequence[Mitigation] = (),
    device: torch.device | str = "cpu",
    tick: Callable[[], None] = lambda: None,
) -> Inspection:
    """Trace a model over prompts, each (B, L + 1), and compare mitigations on them.

    Raises:
        ValueError: prompts no longer than the training length, or pieces that do not cut there.
    """
    tokens = {name: torch.from_numpy(rows).to(device) for name, rows in prompts.items()}
    length = next(iter(prompts.values())).shape[1] - 1
    if length <= training_length or piece > training_length:
        raise ValueError(
            f"{length} tokens in pieces of {piece}; expected more tokens than the training length "
            f"{training_length}, and pieces no longer than it"
        )
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    collapse = {}
    for prompt, rows in tokens.items():
        trace = trace_states(model, rows, piece=piece, snapshots=(training_length,), tick=tick)
        for name in TABLES:
            table: pd.DataFrame = getattr(trace, name)
            found[name].append(table.assign(prompt=prompt))
        collapse[prompt] = _collapse(trace.losses, length, training_length, factor)
    tables = {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}
    refused, defined = {}, []
    for mitigation in mitigations:
        try:
            changed_layers(model, mitigation)
            defined.append(mitigation)
        except ValueError as error:
            refused[mitigation.name] = str(error)
    curves, rows = _mitigations(
        model, tokens, defined, length=length, training_length=training_length, piece=piece,
        factor=factor, tick=tick,
    )  # fmt: skip
    tables["mitigations"] = rows
    return Inspection(
        length=length,
        training_length=training_length,
        piece=piece,
        tables=tables,
        collapse=collapse,
        mitigated_losses=curves,
        refused=refused,
    )


def _collapse(losses: pd.DataFrame, length: int, training_length: int, factor: float) -> Collapse:
    """Over buckets of half a training length."""
    first, means = in_buckets(
        losses["first"].tolist(), losses["loss"].tolist(), length=length,
        size=max(training_length // 2, 1),
    )  # fmt: skip
    return find_collapse(
        first, means, length=length, training_length=training_length, factor=factor
    )


@torch.inference_mode()
def losses_in_pieces(
    model: LanguageModel, tokens: Tensor, piece: int, tick: Callable[[], None] = lambda: None
) -> pd.DataFrame:
    """Mean loss of each piece of tokens (B, L + 1), the state carried: first, position, loss."""
    states, rows, length = None, [], tokens.shape[1] - 1
    for start in range(0, length, piece):
        tick()
        end = min(start + piece, length)
        loss, states = token_losses_and_states(
            model, tokens[:, start:end], tokens[:, start + 1 : end + 1], states
        )
        mean = float(loss.mean())
        rows.append({"first": start, "position": end, "loss": mean})
    return pd.DataFrame(rows)


def _mitigations(
    model: LanguageModel, tokens: Mapping[str, Tensor], mitigations: Sequence[Mitigation], *,
    length: int, training_length: int, piece: int, factor: float, tick: Callable[[], None],
) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Curves of loss under each mitigation, and what each gains, costs and damages."""
    if not mitigations:
        return pd.DataFrame(), pd.DataFrame()
    seconds = _seconds(model, next(iter(tokens.values()))[:, : 4 * training_length], mitigations)
    curves, rows = [], []
    for prompt, text in tokens.items():
        plain = 0.0
        for mitigation in (None, *mitigations):
            name = mitigation.label if mitigation else "none"
            with mitigated(model, mitigation):
                losses = losses_in_pieces(model, text, piece, tick)
            curves.append(losses.assign(prompt=prompt, mitigation=name))
            within = losses["position"].to_numpy() <= training_length
            short, beyond = (
                float(losses["loss"].to_numpy()[at].mean()) for at in (within, ~within)
            )
            plain = plain if mitigation else short
            collapse = _collapse(losses, length, training_length, factor)
            rows.append(
                {
                    "prompt": prompt,
                    "mitigation": name,
                    "loss_in_training_length": short,
                    "damage_in_training_length": short - plain,
                    "loss_beyond": beyond,
                    "ratio": collapse.ratio,
                    "collapse_position": collapse.position,
                    "times_slower": seconds[name] / seconds["none"],
                }
            )
    return pd.concat(curves, ignore_index=True), pd.DataFrame(rows)


@torch.inference_mode()
def _seconds(
    model: LanguageModel, tokens: Tensor, mitigations: Sequence[Mitigation]
) -> dict[str, float]:
    """Median seconds of a pass, taken in turn because shared machines drift.

    On a CPU of its time, not the clock's: others' work on the machine does not count.
    """
    clock = time.perf_counter if tokens.is_cuda else time.process_time
    taken: dict[str, list[float]] = {}
    for repeat in range(REPEATS + 1):
        for mitigation in (None, *mitigations):
            with mitigated(model, mitigation):
                _wait(tokens)
                begun = clock()
                model(tokens)
                _wait(tokens)
                spent = clock() - begun
            if repeat:  # the first warms up
                taken.setdefault(mitigation.label if mitigation else "none", []).append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}


def _wait(tokens: Tensor) -> None:
    if tokens.is_cuda:
        torch.cuda.synchronize(tokens.device)
