"""`arch-search generate`: text from a trained model, its state carried from token to token."""

import json
import sys
import time
from typing import Annotated

import typer

from arch_search.commands.screen import screen
from arch_search.errors import UsageError
from arch_search.storage import Root


def generate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="experiment/arm/seed, a run's hash, or "
                                       "a checkpoint's folder.")],
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "-p", help="The text to go on "
                      "from; may be given several times. '-' reads it from stdin. Without it: a "
                      "document's start.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="At most so many new ones.")] = 200,
    temperature: Annotated[float, typer.Option("--temperature", help="0: always the likeliest "
                                               "token.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Draw from the likeliest tokens that "
                                         "reach this share.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of what is drawn.")] = 0,
    step: Annotated[int | None, typer.Option("--step", help="A run's checkpoint of this step.")
                    ] = None,
    device: Annotated[str, typer.Option("--device", help="As torch names it.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print prompts and texts as JSON.")
                       ] = False,
) -> None:  # fmt: skip
    """Let a trained model write, to see what it has learnt. Ends at the end of a document."""
    from arch_search.commands.device import named_device
    from arch_search.data import load_manifest
    from arch_search.data.encoding import tokenizer_of
    from arch_search.generation import Inference, Sampling
    from arch_search.generation import generate as go_on
    from arch_search.stored_model import find_stored_model

    root = Root()
    stored = find_stored_model(root, run, step=step)
    if stored.run is None or stored.run.data.task is not None:
        raise UsageError(f"{run} was not trained on text here, so there is no tokenizer for it")
    tokenizer = tokenizer_of(load_manifest(root.path, stored.run.data.manifest))
    end = tokenizer.end_of_document
    texts = [sys.stdin.read() if text == "-" else text for text in prompt or [""]]
    prompts = [[end, *tokenizer.encode(text.encode()).tolist()] for text in texts]
    try:
        sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
        where = named_device(device)
        model = stored.load(where)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error).splitlines()[0]) from None
    inference = Inference(model=model, device=where, precision=stored.run.train.precision)
    started = time.perf_counter()
    grown = go_on(
        inference, prompts, tokens=tokens, sampling=sampling, is_over=lambda new: new[-1] == end
    )
    seconds = time.perf_counter() - started
    written = [tokenizer.decode(new) for new in grown]
    if as_json:
        pairs = zip(texts, written, grown, strict=True)
        print(json.dumps([{"prompt": p, "text": t, "tokens": len(g)} for p, t, g in pairs]))
        return
    for text, new in zip(texts, written, strict=True):
        print(text + new)
    count = sum(map(len, grown))
    screen(stderr=True).print(
        f"{count} tokens in {seconds:.2f} s ({count / seconds:.0f} a second, on {where})"
    )
