"""What is measured while training: one number, cheap enough to be taken often."""

from arch_search.model import LanguageModel
from arch_search.tasks.base import EvaluationContext
from arch_search.tasks.language import subset_bits_per_byte
from arch_search.tasks.synthetic import training_length_accuracy


def validate(model: LanguageModel, context: EvaluationContext, tokens: int) -> dict[str, float]:
    """On about `tokens` tokens that are not trained on: bits per byte, or a task's accuracy."""
    if context.data is not None and context.data.task is not None:
        return {"val/subset_accuracy": training_length_accuracy(model, context, tokens)}
    return {"val/subset_bits_per_byte": subset_bits_per_byte(model, context, tokens)}
