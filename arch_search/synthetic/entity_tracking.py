"""Entity tracking as text: things are put into boxes, moved and taken out; what does a box hold?

After Kim and Schuster (arXiv 2305.02363), in sentences of our own.
"""

from dataclasses import dataclass

from arch_search.data.tokenizers import Tokenizer
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.text import Haystack, TextItem, TextTask, token_ids
from blocks.options import option, require_positive

THINGS = (
    *("apple", "ball", "bell", "book", "boot", "bowl", "brick", "brush", "cake", "card", "chain"),
    *("clock", "coat", "coin", "comb", "cup", "disk", "doll", "drum", "egg", "fan", "flag"),
    *("flute", "fork", "glass", "glove", "hat", "jar", "kettle", "key", "kite", "lamp", "leaf"),
    *("lock", "map", "mask", "mirror", "mug", "note", "nut", "pan", "pen", "phone", "pin"),
    *("plate", "pot", "ring", "rope", "rug", "saw", "shell", "shoe", "spoon", "stamp", "stone"),
    *("string", "tape", "tile", "toy", "tray", "vase", "watch", "wheel", "wire"),
)
SHORTEST = 6  # tokens of an operation, in any tokenizer


class EntityTracking(TextTask):
    """Boxes with one thing each, changed by as many operations as the length has room for."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        boxes: int = option(4, "how many boxes there are")
        things: int = option(16, f"of how many things they are filled, up to {len(THINGS)}")
        operations: int = option(0, "at most so many; 0: as many as fit")

        def __post_init__(self) -> None:
            require_positive(self, "boxes", "things")
            if self.boxes < 2 or not self.boxes <= self.things <= len(THINGS):
                raise ValueError(
                    f"boxes {self.boxes}, things {self.things}; expected at least 2 boxes and "
                    f"between as many and {len(THINGS)} things"
                )

    def chance(self, options: Options, length: int) -> float:
        """Naming one of the things in boxes, whichever."""
        return 1 / options.boxes

    def items(
        self, draws: Draws, length: int, options: Options, tokenizer: Tokenizer, haystack: Haystack
    ) -> list[TextItem]:
        first = draws.choices(options.things, options.boxes)
        words = draws.words(length // SHORTEST + 1, 3)
        asked = draws.integers(options.boxes)
        return [
            self._item(first[i].tolist(), words[i].tolist(), int(asked[i]), length, options,
                       tokenizer)
            for i in range(len(draws))
        ]  # fmt: skip

    def _item(
        self,
        held: list[int],
        words: list[list[int]],
        asked: int,
        length: int,
        options: Options,
        tokenizer: Tokenizer,
    ) -> TextItem:
        question, longest = f" Box {asked} now holds the", max(map(len, THINGS)) + 2
        text = " ".join(f"Box {box} holds the {THINGS[thing]}." for box, thing in enumerate(held))
        used, moves = len(token_ids(tokenizer, text + question)) + longest + 1, 0
        if used > length:
            raise ValueError(f"{length} tokens have no room for {len(held)} boxes; give {used}")
        for what, one, other in words:
            if options.operations and moves == options.operations:
                break
            after, sentence = _operate(held, what, one, other, options.things)
            used += len(token_ids(tokenizer, sentence))
            if used > length:
                break
            held, text, moves = after, text + sentence, moves + 1
        answer = THINGS[held[asked]]
        return TextItem(
            prompt=text + question,
            said=f" {answer}.",
            answers=(answer,),
            about={"operations": moves},
        )


def _operate(
    held: list[int], what: int, one: int, other: int, things: int
) -> tuple[list[int], str]:
    """What the boxes hold after one operation, and its sentence: an exchange, or a replacement."""
    a = one % len(held)
    after = list(held)
    if what % 2:
        b = (a + 1 + other % (len(held) - 1)) % len(held)
        after[a], after[b] = held[b], held[a]
        return after, f" Swap what is in box {a} and box {b}."
    free = [thing for thing in range(things) if thing not in held] or [held[a]]
    after[a] = free[other % len(free)]
    return after, f" Put the {THINGS[after[a]]} into box {a} instead."
