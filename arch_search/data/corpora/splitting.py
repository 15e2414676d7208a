"""Holding documents out: stratified, by name alone, with enough long ones for long contexts."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from arch_search.data.corpora.base import SplitName

ONE_IN = 20  # 5% of the documents for each of val and test


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A document as the split sees it. `size` is in bytes."""

    name: str
    stratum: str
    size: int


def _draw(name: str) -> bytes:
    """A number that orders documents at random, and the same way on every machine."""
    return sha256(f"split/{name}".encode()).digest()


def split_by_document(
    candidates: Sequence[Candidate], *, long_size: int, long_documents: int
) -> dict[str, SplitName]:
    """Assign every document to one split: about 90/5/5, in each stratum as in the whole.

    Documents are sorted by stratum, at random within it, and every twentieth goes to val, every
    twentieth to test (systematic sampling: no stratum is off its share by more than a document).
    Val and test are then topped up from train until each has `long_documents` documents of at
    least `long_size` bytes: long contexts cannot be judged on short documents.

    Raises:
        ValueError: two documents of one name, or too few long ones.
    """
    if len({candidate.name for candidate in candidates}) != len(candidates):
        raise ValueError("two documents of one name: a split by document needs distinct names")
    ordered = sorted(candidates, key=lambda c: (c.stratum, _draw(c.name)))
    splits: dict[str, SplitName] = {}
    for index, candidate in enumerate(ordered):
        place = index % ONE_IN
        held_out: SplitName = "val" if place == ONE_IN // 4 else "test"
        splits[candidate.name] = held_out if place % (ONE_IN // 2) == ONE_IN // 4 else "train"
    long = sorted((c.name for c in candidates if c.size >= long_size), key=_draw)
    for split in ("val", "test"):
        missing = long_documents - sum(splits[name] == split for name in long)
        available = [name for name in long if splits[name] == "train"]
        if missing > len(available):
            raise ValueError(f"{len(long)} documents of {long_size} bytes: too few to hold out")
        splits.update(dict.fromkeys(available[: max(missing, 0)], split))
    return splits


def held_out(index: int, key: str) -> SplitName:
    """The split of the document at `index` of a corpus that is read once, front to back.

    Of every twenty documents one goes to val and one to test, at places drawn anew each time: the
    shares are exact along the whole corpus, and nothing has to be known of what is still to come.
    """
    block, place = divmod(index, ONE_IN)
    digest = sha256(f"held out/{key}/{block}".encode()).digest()
    val = digest[0] % ONE_IN
    test = (val + 1 + digest[1] % (ONE_IN - 1)) % ONE_IN
    return "val" if place == val else "test" if place == test else "train"
