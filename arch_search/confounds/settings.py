"""Settings that arms do not share: of data, training and model, and options of equal mixers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from arch_search.experiment import ExperimentFile
from arch_search.plan_spec import ArmSpec, FindingSpec
from arch_search.wording import by_value, grouped, listed

WORDS = {
    "data.batch": "batch (sequences a step)",
    "data.corpus": "corpus",
    "data.manifest": "prepared data (hash)",
    "data.reset": "state reset between documents",
    "data.sequence_length": "sequence length",
    "data.curriculum": "curriculum of lengths",
    "data.items": "number of training items",
    "data.task": "task",
    "data.tokenizer": "tokenizer",
    "epochs": "passes over the corpus",
    "model.depth": "number of layers",
    "model.mlp.width": "MLP width",
    "model.mlp.experts": "experts of the MLP",
    "model.norm_eps": "epsilon of the norms",
    "model.tie_embeddings": "tied embeddings",
    "model.vocabulary": "vocabulary",
    "model.width": "model width",
    "steps": "optimiser steps",
    "train.optimiser.learning_rate": "learning rate",
    "train.precision": "precision",
    "train.schedule.warmup": "warm-up (share of steps)",
    "train.tokens": "tokens trained on",
}
FOLLOWS = {  # what needs no word of its own where its cause is named
    "steps": ("data.batch", "data.sequence_length", "train.tokens"),
    "epochs": ("data.corpus", "data.tokenizer", "train.tokens"),
    "data.manifest": ("data.corpus", "data.tokenizer"),
    "data.corpus": ("data.task",),
    "model.vocabulary": ("data.tokenizer", "data.corpus", "data.task"),
    "model.depth": ("model.pattern",),
}
KEYS = {  # of a file, that set what is no key of one
    "steps": "train.tokens",
    "epochs": "train.tokens",
    "data.manifest": "data.corpus",
    "model.depth": "model.pattern",
    "model.vocabulary": "data.tokenizer",
}
LEARNING_RATE = "train.optimiser.learning_rate"


def unequal_settings(
    file: ExperimentFile, arms: Sequence[ArmSpec], *, tuned: bool
) -> Iterator[FindingSpec]:
    """What arms set differently without naming it as a factor.

    A lone difference is itself the factor; one of the data must still be declared, since a
    comparison over unequal data is refused otherwise.
    """
    unequal = {name: values for name, values in _by_setting(arms).items() if _differ(values)}
    unequal = {
        name: values
        for name, values in unequal.items()
        if not any(cause in unequal for cause in FOLLOWS.get(name, ()))
    }
    declared = set(file.arms.factors)
    if file.arms.lengths:  # a step has as many tokens whatever the length of its rows
        declared |= {"data.sequence_length", "data.batch"}
    if tuned:
        unequal.pop(LEARNING_RATE, None)
    options = sum(1 for _ in _unequal_options(arms))
    alone = len(unequal) + options == 1 and not _layouts_differ(arms)
    for name, values in unequal.items():
        if _is_declared(name, declared) or (alone and not name.startswith(("data.", "train.tok"))):
            continue
        text = (
            f"{WORDS.get(name, name.replace('.', ' '))} differs: {by_value(values)}. Make it "
            f"equal, or say that it is meant: arms.factors: [{KEYS.get(name, name)}]"
        )
        yield FindingSpec(level="warning", subject=name, text=text)


def unequal_options(file: ExperimentFile, arms: Sequence[ArmSpec]) -> Iterator[FindingSpec]:
    """Options that layers of one kind do not share over written-out arms, named by no factor.

    Arms made from axes can differ in options only by a factor, a knob of `hold`, or as a control.
    """
    written = [arm for arm in arms if "arm" in arm.factors or arm.is_baseline]
    if len(written) < len(arms) or all(arm.is_baseline for arm in written):
        written = [arm for arm in written if not arm.is_baseline]
    named = {name.rpartition(".")[2] for name in file.arms.factors}
    unequal = list(_unequal_options(written))
    declared = [(kind, values) for kind, option, values in unequal if option in named]
    found = [
        (kind, option, values)
        for kind, option, values in unequal
        if option not in named and (kind, values) not in declared  # heads that follow other heads
    ]
    if len(found) == 1 and not _layouts_differ(arms) and not _unequal_names(arms):
        return  # a lone difference is the factor
    for kind, option, values in found:
        text = f"{option} of {kind} differs: {by_value(values)}"
        if option == "position":
            rope = [name for name, value in values.items() if value == "rope"]
            text = (
                f"positions are encoded (RoPE) in {listed(rope)} only; attention in the other arms "
                f"has none ({by_value(values)})"
            )
        yield FindingSpec(level="warning", subject=f"{kind}.{option}", text=text)


def _by_setting(arms: Sequence[ArmSpec]) -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for arm in arms:
        for name, value in settings_of(arm).items():
            table.setdefault(name, {})[arm.name] = value
    return table


def settings_of(arm: ArmSpec) -> dict[str, Any]:
    """Everything set for an arm that is not its layers' mixers, by its key in the file."""
    train = asdict(arm.train)
    flat: dict[str, Any] = {f"data.{name}": value for name, value in asdict(arm.data).items()}
    for part in ("optimiser", "schedule"):
        flat |= {f"train.{part}.{name}": value for name, value in train.pop(part).items()}
    flat |= {f"train.{name}": value for name, value in train.items()}
    kept = [layer.mlp_width for i, layer in enumerate(arm.model.layers) if i not in arm.replaced]
    if not kept and "replaced.mlp.width" not in arm.held:
        kept = [layer.mlp_width for layer in arm.model.layers]
    flat |= {
        "model.width": arm.model.width,
        "model.depth": len(arm.model.layers),
        "model.vocabulary": arm.model.vocabulary,
        "model.tie_embeddings": arm.model.tie_embeddings,
        "model.norm_eps": arm.model.norm_eps,
    }
    experts = {str(asdict(layer.experts)) for layer in arm.model.layers if layer.experts}
    flat["model.mlp.experts"] = listed(sorted(experts)) if experts else "none"
    if kept and "mlp.width" not in arm.held:
        flat["model.mlp.width"] = listed(map(str, sorted(set(kept))))
    flat |= {name: arm.counts[name] for name in ("epochs", "steps") if name in arm.counts}
    return flat


def _differ(values: Mapping[str, Any]) -> bool:
    return len(grouped(values)) > 1


def _unequal_names(arms: Sequence[ArmSpec]) -> list[str]:
    return [name for name, values in _by_setting(arms).items() if _differ(values)]


def _is_declared(name: str, declared: set[str]) -> bool:
    return name in declared or any(cause in declared for cause in FOLLOWS.get(name, ()))


def _layouts_differ(arms: Sequence[ArmSpec]) -> bool:
    return len({tuple(layer.kind for layer in arm.model.layers) for arm in arms}) > 1


def _unequal_options(
    arms: Sequence[ArmSpec],
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(kind, option, value by arm) where arms give one kind of mixer other options.

    An arm in which layers of that kind differ among themselves shows all their values.
    """
    seen: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for arm in arms:
        for layer in arm.model.layers:
            for option, value in layer.options.items():
                values = seen.setdefault((layer.kind, option), {}).setdefault(arm.name, [])
                if value not in values:
                    values.append(value)
    for (kind, option), values in seen.items():
        shown = {name: v[0] if len(v) == 1 else v for name, v in values.items()}
        if _differ(shown):
            yield kind, option, shown
