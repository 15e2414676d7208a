"""The experiment file as plain data: defaults composed by Hydra, overrides merged by OmegaConf."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arch_search.errors import UsageError
from blocks.options import did_you_mean

TAKEN_WHOLE = ("corpus", "tokenizer", "task")
"""Keys of `data` whose mapping replaces another: `{jsonl: …}` over `{folder: …}` is no mixture."""
SCALE = "scale="
LARGEST_BYTES = 1_000_000
MOST_ALIASES = 100  # each multiplies what it names: a few lines could fill the memory
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def load_mapping(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The file with its defaults composed and the overrides applied, as plain data.

    Raises:
        UsageError: no such file, not YAML, an unknown group or scale, an override that is no
            `key=value`.
    """
    own = _read_yaml(path)
    _refuse_control_characters(path, [own, list(overrides)])
    defaults, scales = own.pop("defaults", []), own.pop("scales", {})
    scale, overrides = _chosen_scale(overrides)
    with _errors_of(path):
        composed = _compose(path, defaults)
        _drop_replaced(composed, own)
        merged = OmegaConf.merge(composed, own)
        if scale:
            merged = OmegaConf.create(_at_scale(merged, scales, scale, path))
        for override in overrides:
            _override(merged, override)
        data = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def _chosen_scale(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The last `scale=NAME` among the overrides, and the others."""
    chosen = [text.removeprefix(SCALE) for text in overrides if text.startswith(SCALE)]
    return (chosen[-1] if chosen else ""), [o for o in overrides if not o.startswith(SCALE)]


def _at_scale(
    merged: DictConfig | ListConfig, scales: Any, name: str, path: Path
) -> dict[str, Any]:
    """The file as its section `scales: {NAME: …}` changes it, under a name of its own."""
    if not isinstance(scales, dict) or not isinstance(scales.get(name), dict):
        known = ", ".join(map(str, scales)) if isinstance(scales, dict) and scales else "none"
        raise UsageError(f"{path}: no scale {name!r}; scales of this file: {known}")
    data = OmegaConf.to_container(merged, resolve=False)
    assert isinstance(data, dict)
    changed = _merged({str(key): value for key, value in data.items()}, scales[name])
    return {**changed, "name": f"{changed.get('name', path.stem)}-{name}"}


def _merged(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Mappings key by key; anything else, and what is TAKEN_WHOLE, replaced; null takes it out."""
    result = dict(data)
    for key, value in changes.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(before, dict) and key not in TAKEN_WHOLE:
            result[key] = _merged(before, value)
        else:
            result[key] = value
    return result


def _drop_replaced(composed: DictConfig, own: dict[str, Any]) -> None:
    data = own.get("data")
    for key in TAKEN_WHOLE:
        if isinstance(data, dict) and key in data and "data" in composed:
            composed.data.pop(key, None)


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"no experiment file at {path}")
    with _errors_of(path):
        _refuse_bombs(path)
        loaded = OmegaConf.load(path)
    if not isinstance(loaded, DictConfig):
        raise UsageError(f"{path}: an experiment file is a mapping of keys, this one is a list")
    data = OmegaConf.to_container(loaded, resolve=False)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def _refuse_bombs(path: Path) -> None:
    if path.stat().st_size > LARGEST_BYTES:
        raise UsageError(f"{path}: an experiment file has at most {LARGEST_BYTES:,} bytes")
    with path.open("rb") as file:
        aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(file))
    if aliases > MOST_ALIASES:
        raise UsageError(f"{path}: {aliases} YAML aliases (*name), expected {MOST_ALIASES} at most")


def _refuse_control_characters(path: Path, value: Any, key: str = "") -> None:
    """They could rewrite what a terminal shows of a name or a question."""
    if isinstance(value, dict):
        for name, item in value.items():
            _refuse_control_characters(path, [str(name), item], str(name))
    elif isinstance(value, list):
        for item in value:
            _refuse_control_characters(path, item, key)
    elif isinstance(value, str) and CONTROL.search(value):
        raise UsageError(f"{path}: {key or 'an override'} has control characters: {value[:40]!r}")


def _compose(path: Path, defaults: Any) -> DictConfig:
    """Hydra composes `defaults: [base, group: choice, …]` from the conf folder beside the file."""
    if not isinstance(defaults, list):
        raise UsageError(f"{path}: defaults must be a list, as in [base, model: tiny_hybrid]")
    if not defaults:
        return OmegaConf.create()
    conf = _conf_folder(path)
    base, choices = None, []
    for entry in defaults:
        if isinstance(entry, dict):
            for group, choice in entry.items():
                _check_choice(path, conf, str(group), choice)
                choices.append(f"+{group}={choice}")
            continue
        if base is not None:
            raise UsageError(f"{path}: defaults has two bases, {base!r} and {entry!r}")
        _check_known(path, "defaults", "base", entry, [file.stem for file in conf.glob("*.yaml")])
        base = entry
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf), version_base="1.3"):
        composed = compose(config_name=base, overrides=choices)
    OmegaConf.set_struct(composed, False)  # the file may add keys; the validator refuses wrong ones
    return composed


def _check_choice(path: Path, conf: Path, group: str, choice: Any) -> None:
    """Hydra says what is missing, too, but with where and how it looked for it."""
    groups = [_below(conf, folder) for folder in conf.rglob("*") if folder.is_dir()]
    _check_known(path, "defaults", "group", group, groups)
    known = [_below(conf / group, file) for file in (conf / group).rglob("*.yaml")]
    for one in choice if isinstance(choice, list) else [choice]:
        _check_known(path, f"defaults.{group}", group, one, known)


def _check_known(path: Path, where: str, what: str, given: Any, known: Sequence[str]) -> None:
    if str(given) not in known:
        raise UsageError(
            f"{path}: {where}: no {what} {given!r}; there are: {', '.join(sorted(known))}."
            f"{did_you_mean(str(given), known)}"
        )


def _below(folder: Path, path: Path) -> str:
    """A path in a folder as Hydra names it: without the ending."""
    return path.relative_to(folder).with_suffix("").as_posix()


def _conf_folder(path: Path) -> Path:
    """experiments/conf beside the file or above it; else the repository's own."""
    above = [folder / "conf" for folder in path.resolve().parents]
    own = Path(__file__).resolve().parents[1] / "experiments" / "conf"
    for folder in [*above, own]:
        if (folder / "base.yaml").is_file():
            return folder
    raise UsageError(f"{path}: no conf folder with base.yaml beside it, above it, or in {own}")


def _override(merged: DictConfig | ListConfig, text: str) -> None:
    """Set `key=value`: a mapping is merged into a mapping, anything else takes the old's place.

    `~key` leaves out what the file has there, as in Hydra.
    """
    if text.startswith("~"):
        where, _, name = text[1:].rpartition(".")
        parent = OmegaConf.select(merged, where) if where else merged
        if not isinstance(parent, DictConfig) or name not in parent:
            raise UsageError(f"override {text!r}: the file has no {text[1:]!r} to leave out")
        del parent[name]
        return
    key, equals, _ = text.partition("=")
    if not equals or not key:
        raise UsageError(f"override {text!r} is not key=value, as in train.tokens=1M")
    value = OmegaConf.select(OmegaConf.from_dotlist([text]), key)
    both = isinstance(value, DictConfig) and isinstance(OmegaConf.select(merged, key), DictConfig)
    both = both and key.removeprefix("data.") not in TAKEN_WHOLE
    OmegaConf.update(merged, key, value, merge=both, force_add=True)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: {getattr(error, 'problem', None) or error}") from None
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error.__cause__ or error).strip()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        kept = [
            line
            for line in lines
            if not line.startswith(("full_key", "object_type", "Config", "provider="))
        ]
        raise UsageError(f"{path}: {' '.join(kept) or text}") from None
