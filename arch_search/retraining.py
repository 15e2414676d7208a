"""A finished run whose last checkpoint is lost, trained again to the same weights."""

import contextlib

import torch

from arch_search.attempt import Attempt
from arch_search.data import load_manifest
from arch_search.errors import UsageError
from arch_search.evaluating import last_weights
from arch_search.later_evaluation import Say
from arch_search.lease import is_live
from arch_search.run_settings import LogSpec, ResourceSpec
from arch_search.sources import run_code
from arch_search.storage import Root
from arch_search.train import train


def retrain(root: Root, text: str, *, device: torch.device, say: Say = print) -> None:
    """Have a finished run's lost last checkpoint back: train it again, from its start.

    Raises:
        UsageError: it is not finished, is at work, or the source is another than what trained it.
    """
    from arch_search.commands.logs import find_run

    run = find_run(root, text)
    spec, result = run.spec(), run.result()
    with contextlib.suppress(ValueError):
        last_weights(run, spec)
        return
    if result is None or is_live(run.attempts()[-1]):
        raise UsageError(f"run {text} has not finished; `arch-search resume` goes on with it")
    if run_code({layer.kind for layer in spec.model.layers}, spec.data.task) != spec.code:
        raise UsageError(
            f"run {text} was trained by other source code (hash {spec.code}); check out the "
            f"commit that its result names, {result['environment'].get('git_commit')}, for that"
        )
    manifest = None if spec.data.task else load_manifest(root.path, spec.data.manifest)
    say(f"trains {text} again, {spec.steps:,} steps")
    with Attempt.claim(run, experiment="retrained", keep_checkpoints=1) as attempt:
        trained = train(
            spec, attempt, manifest=manifest, log=LogSpec(),
            resources=ResourceSpec(gpus=float(device.type == "cuda")),
        )  # fmt: skip
        if trained.progress.stream["tokens"] != result["stream"]["tokens"]:
            raise ValueError("the run saw other tokens than before; its data were changed")
        before, now = result["metrics"]["train/final_loss"], trained.progress.loss
        how = "equal to before, to the bit" if before == now else f"it was {before}"
        attempt.event(f"trained again for its last checkpoint: final loss {now}, {how}")
        say(f"final loss {now:.6g}, {how}")
