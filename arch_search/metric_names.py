"""Which way is better, and in which unit, by a metric's name."""

_HIGHER = (
    *("acc", "exact_match", "f1", "solved", "tokens_per_second", "recall"),
    *("contains", "score", "rouge", "bleu"),
)
_LOWER = ("loss", "bits_per_byte", "perplexity", "nats", "seconds", "gib", "bytes")
_YES_OR_NO = ("solved", "found")  # of synthetic tasks, of collapse
_LABELS = {
    "bits_per_byte": "bits per byte",
    "loss": "loss (nats per token)",
    "tokens_per_second": "tokens per second",
}


def direction(metric: str) -> int:
    """+1 if more is better, -1 if less is, 0 if the name does not tell."""
    last = metric.partition(" ")[0].rsplit("/", 1)[-1]  # options may follow
    if any(word in last for word in _HIGHER):
        return 1
    return -1 if any(word in last for word in _LOWER) else 0


def label(metric: str) -> str:
    """A metric's name for an axis: 'val/bits_per_byte' -> 'validation bits per byte'."""
    group, _, last = metric.rpartition("/")
    text = _LABELS.get(last, last.replace("_", " "))
    prefix = {"val": "validation ", "train": "training ", "": ""}.get(group, f"{group} ")
    return prefix + text


def is_yes_or_no(metric: str) -> bool:
    """By its name: `…/solved`. A share of items is none, even where every run reached 0 or 1."""
    return metric.partition(" ")[0].rsplit("/", 1)[-1] in _YES_OR_NO  # options may follow
