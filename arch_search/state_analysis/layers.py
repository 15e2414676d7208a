"""The mixers of a model, in order."""

from arch_search.model import LanguageModel
from blocks.base import SequenceMixer


def mixers_of(model: LanguageModel) -> list[SequenceMixer]:
    """One a layer."""
    mixers = [layer.get_submodule("mixer") for layer in model.layers]
    assert all(isinstance(mixer, SequenceMixer) for mixer in mixers)
    return mixers  # type: ignore[return-value]
