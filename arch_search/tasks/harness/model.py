"""Our models through lm-eval's model interface: log-likelihoods and generation, in tokens."""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from arch_search.data.tokenizers import Tokenizer
from arch_search.generation import Inference, Sampling, generate
from arch_search.scoring import score_continuations

DEFAULT_TOKENS = 256  # generated where a task does not say how many


class HarnessModel(TemplateLM):
    """A language model as lm-eval asks it; conventions as its `hf` model has them.

    max_length: tokens seen at once; longer contexts lose their beginning.
    begin: put the end-of-document token before every text, as before documents in training.
    """

    def __init__(
        self, inference: Inference, tokenizer: Tokenizer, *, max_length: int, begin: bool, seed: int
    ) -> None:
        super().__init__()
        self.inference, self.encoder = inference, tokenizer
        self.max_length, self.begin, self.seed = max_length, begin, seed

    @property
    def eot_token_id(self) -> int:
        """The end of a document; it also stands before a text that has no context."""
        return self.encoder.end_of_document

    @property
    def tokenizer_name(self) -> str:
        return self.encoder.name

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """The tokens of a text; no special ones are added."""
        return self.encoder.encode(string.encode(errors="replace")).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        """What tokens spell; bytes that are no UTF-8 become the replacement character."""
        return self.encoder.decode(tokens)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [self._within(context, continuation) for _, context, continuation in requests]
        scores = score_continuations(self.inference, pairs)
        return [(score.nats, score.is_greedy) for score in scores]

    def _within(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """A context that fits: its last tokens, so that the last window predicts all of the rest.

        Raises ValueError for a continuation that is empty or longer than what is seen at once.
        """
        if not 0 < len(continuation) <= self.max_length:
            raise ValueError(
                f"a continuation has {len(continuation)} tokens; expected 1 to max_length "
                f"({self.max_length}): raise lm_eval.max_length"
            )
        if self.begin and context[0] != self.eot_token_id:
            context = [self.eot_token_id, *context]
        return context[-(self.max_length + 1 - len(continuation)) :], continuation

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of whole texts: disjoint windows, each after one token of context."""
        windows, owners = [], []
        for i, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for pair in get_rolling_token_windows(tokens, self.eot_token_id, self.max_length, 1):
                windows.append(make_disjoint_window(pair))
                owners.append(i)
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, score_continuations(self.inference, windows), strict=True):
            totals[owner] += score.nats
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Text after each context, up to the first of the task's stops or an end of document."""
        alike: dict[str, list[int]] = {}
        asked: list[tuple[str, dict[str, Any]]] = [r.args for r in requests]  # type: ignore
        settings = [normalize_gen_kwargs(dict(given), DEFAULT_TOKENS) for _, given in asked]
        for i, setting in enumerate(settings):
            alike.setdefault(repr(sorted(setting.items())), []).append(i)
        texts = [""] * len(requests)
        for group in alike.values():
            found = self._generate([asked[i][0] for i in group], settings[group[0]])
            for i, text in zip(group, found, strict=True):
                texts[i] = text
        return texts

    def _generate(self, contexts: list[str], setting: Any) -> list[str]:
        stops = [stop for stop in setting["until"] if stop]
        room = max(self.max_length - setting["max_gen_toks"], 1)
        sampling = Sampling(
            temperature=setting["temperature"] if setting.get("do_sample") else 0.0,
            top_p=setting.get("top_p", 1.0),
            seed=self.seed,
        )

        def is_over(grown: list[int]) -> bool:
            ended = grown[-1] == self.eot_token_id
            return ended or any(stop in self.decode(grown) for stop in stops)

        prompts = [self._prompt(context)[-room:] for context in contexts]
        grown = generate(
            self.inference, prompts, tokens=setting["max_gen_toks"], sampling=sampling,
            is_over=is_over,
        )  # fmt: skip
        return [self._until(tokens, stops) for tokens in grown]

    def _prompt(self, context: str) -> list[int]:
        tokens = self.tok_encode(context)
        return [self.eot_token_id, *tokens] if self.begin or not tokens else tokens

    def _until(self, tokens: list[int], stops: list[str]) -> str:
        if self.eot_token_id in tokens:
            tokens = tokens[: tokens.index(self.eot_token_id)]
        text = self.decode(tokens)
        for stop in stops:
            text = text.split(stop, 1)[0]
        return text
