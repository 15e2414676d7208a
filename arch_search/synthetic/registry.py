"""The synthetic tasks by name: one line each."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import import_module
from typing import Any

from arch_search.errors import UsageError
from arch_search.synthetic.base import Generator
from blocks.options import did_you_mean, read_options

GENERATORS = {
    "compression": "arch_search.synthetic.mad_copying:Compression",
    "entity_tracking": "arch_search.synthetic.entity_tracking:EntityTracking",
    "final_product": "arch_search.synthetic.final_product:FinalProduct",
    "fuzzy_recall": "arch_search.synthetic.mad_recall:FuzzyRecall",
    "in_context_recall": "arch_search.synthetic.mad_recall:InContextRecall",
    "memorization": "arch_search.synthetic.mad_copying:Memorization",
    "modular_arithmetic": "arch_search.synthetic.modular_arithmetic:ModularArithmetic",
    "mqar": "arch_search.synthetic.mqar:MQAR",
    "needles": "arch_search.synthetic.needles:Needles",
    "passkey": "arch_search.synthetic.passkey:Passkey",
    "programs": "arch_search.synthetic.programs:Programs",
    "selective_copying": "arch_search.synthetic.mad_copying:SelectiveCopying",
    "state_tracking": "arch_search.synthetic.state_tracking:StateTracking",
}


@cache
def generator(name: str) -> Generator:
    """A task by its registered name, or by an import path like "my_pkg.my_file:MyTask".

    Raises:
        UsageError: there is no such task; names what is nearest.
    """
    path = GENERATORS.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        known = ", ".join(sorted(GENERATORS))
        raise UsageError(f"unknown task {name!r}; known: {known}.{did_you_mean(name, GENERATORS)}")
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise UsageError(f"task {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Generator)):
        raise UsageError(f"task {name!r}: {path} is {found!r}; expected a Generator subclass")
    return found()


def generator_module(name: str) -> str:
    """The module that holds a task, for the hash of the source that a run uses."""
    return GENERATORS.get(name, name).partition(":")[0]


def read_task(given: str | Mapping[str, Any]) -> tuple[str, Any]:
    """A task as a file writes it, `parity` or `{state_tracking: {group: S3}}`: name and options.

    Raises:
        UsageError: no task or several, an unknown one, or options that it does not have.
    """
    named = {given: {}} if isinstance(given, str) else given
    if len(named) != 1:
        raise UsageError(
            f"task: expected one name with its options, as {{state_tracking: {{group: S3}}}}, "
            f"got {', '.join(map(str, named)) or 'nothing'}"
        )
    [(name, options)] = named.items()
    try:
        return name, read_options(generator(name).Options, options or {}, owner=name)
    except ValueError as error:
        raise UsageError(f"task: {error}") from None


def resolved_task(given: str | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The same with every option spelled out, as plain data."""
    name, options = read_task(given)
    return {name: asdict(options)}
