"""Passkey retrieval in the format of Stuffed Mamba (arXiv 2410.07145)."""

from dataclasses import dataclass

from arch_search.data.tokenizers import Tokenizer
from arch_search.synthetic.draws import Draws
from arch_search.synthetic.haystacks import GRASS
from arch_search.synthetic.text import Haystack, TextItem, TextTask, largest, token_ids
from blocks.options import option

BEGIN = (
    "There is an important info hidden inside a lot of irrelevant text. "
    "Find it and memorize it.\n\n"
)
NOISE = f"{GRASS}\n"
NEEDLE = "The passkey is {p}. Remember it. {p} is the passkey.\n"
END = "\nWhat is the pass key? The passkey is"


class Passkey(TextTask):
    """Five digits among equal blocks of noise; the needle takes the place of a block."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Options:
        digits: int = option(5, "of the passkey, zeros in front")
        noise: str = option(NOISE, "the block that repeats; shorter ones suit short contexts")
        begin: str = option(BEGIN, "what stands before")
        needle: str = option(NEEDLE, "what hides the passkey, {p} in it")
        end: str = option(END, "the question; the answer is a blank and the passkey")
        depths: int = option(
            0, "depths (i + 0.5) / n in turn, as evaluated; 0: drawn, to be trained on"
        )

        def __post_init__(self) -> None:
            if not 1 <= self.digits <= 18 or not self.noise:
                raise ValueError("digits must be 1 to 18, and noise not empty")
            if "{p}" not in self.needle:
                raise ValueError(f"needle {self.needle!r} must have {{p}} where the passkey stands")

    def chance(self, options: Options, length: int) -> float:
        """By answers, one of all numbers; a single byte of the answer is right one time in ten."""
        return 10.0**-options.digits

    def items(
        self, draws: Draws, length: int, options: Options, tokenizer: Tokenizer, haystack: Haystack
    ) -> list[TextItem]:
        keys = draws.words() % 10**options.digits
        depths = draws.uniform()
        if options.depths:
            depths = (draws.indices % options.depths + 0.5) / options.depths
        blocks = self.blocks(length, options, tokenizer)
        found = []
        for key, depth in zip(keys.tolist(), depths.tolist(), strict=True):
            at = int(depth * (blocks - 1))
            text = f"{key:0{options.digits}d}"
            needle = options.needle.replace("{p}", text)
            after = options.noise * (blocks - 1 - at) + options.end
            found.append(
                TextItem(
                    prompt=options.begin + options.noise * at + needle + after,
                    said=f" {text}",
                    answers=(text,),
                    about={"depth": depth, "distance": len(token_ids(tokenizer, after))},
                )
            )
        return found

    def blocks(self, length: int, options: Options, tokenizer: Tokenizer) -> int:
        """How many blocks fit, the needle among them. Raises ValueError if there is room for none.

        The needle is taken at its longest, so that every item of a length has the same blocks.
        """

        def size(blocks: int) -> int:
            key = "7" * options.digits
            needle = options.needle.replace("{p}", key)
            text = options.begin + options.noise * blocks + needle + options.end
            return 1 + len(token_ids(tokenizer, f"{text} {key}"))

        most = largest(length, lambda n: size(n) <= length)
        if most < 0:
            raise ValueError(
                f"{length} tokens have no room for the passkey and its question; they take "
                f"{size(0)}, or fewer with a shorter data.task.passkey.begin"
            )
        return most + 1
