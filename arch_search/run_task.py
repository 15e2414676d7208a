"""What a worker does with one run: train it unless it is trained, then evaluate what is missing."""

import time

import torch

from arch_search.attempt import Attempt
from arch_search.data import check_files, load_manifest
from arch_search.data.fingerprints import kept_fingerprints
from arch_search.devices import confine_memory, device_for
from arch_search.environment import describe_environment, earlier_environments
from arch_search.evaluating import evaluate_model, last_weights, load_model
from arch_search.run_settings import EvaluationSpec, LogSpec, ResourceSpec
from arch_search.sources import run_code
from arch_search.spec import RunSpec
from arch_search.storage import Root
from arch_search.streams import held_out
from arch_search.tasks.base import EvaluationContext
from arch_search.train import result_of, train
from arch_search.warm_up import compiles
from kernels.backends import ask_for, backend_reasons, backends_used, forget_backends


def execute(
    attempt: Attempt,
    spec: RunSpec,
    *,
    log: LogSpec,
    resources: ResourceSpec,
    evaluations: tuple[EvaluationSpec, ...],
    root: Root,
) -> None:
    """Bring one run to its end; everything it finds out stands in the run's folder.

    Raises:
        ValueError: the source code here is not what the plan was made with.
        Diverged, Stopped, Fenced: as from `train`.
    """
    _check_code(spec)
    forget_backends()
    ask_for(resources.backends)
    torch.set_num_threads(max(int(resources.cpus), 1))
    device = device_for(resources)
    confine_memory(device, resources)
    environment = describe_environment(device)
    attempt.folder.write_environment(environment)
    if earlier := earlier_environments(attempt.run, attempt.folder):
        attempt.event(f"goes on from {earlier}")
    manifest = None if spec.data.task else load_manifest(root.path, spec.data.manifest)
    if manifest is not None:
        with kept_fingerprints(root.path / "data" / ".fingerprints.json"):
            check_files(manifest, contents=True)  # shards that were changed since are refused
    if attempt.run.result() is None:
        started = time.time()
        trained = train(spec, attempt, manifest=manifest, log=log, resources=resources)
        model = trained.model
        result = result_of(spec, trained, started)
        result["environment"] = environment | {
            "backends": _backends(),
            "backend_reasons": backend_reasons(),
            "compiled": compiles(resources, device),
            "micro_batch": trained.progress.micro_batch,
            "earlier_attempts": earlier,
        }
        if trained.graphs:
            result["environment"]["graphs"] = trained.graphs
        result |= trained.kernels
        if 0 < resources.gpus < 1:
            result["environment"]["device_share"] = resources.gpus  # its speed is not to be ranked
        attempt.finish(result)
    else:
        model = load_model(spec.model, last_weights(attempt.run, spec), device)
    context = EvaluationContext(
        split=held_out(manifest),
        data=spec.data,
        sequence_length=spec.data.sequence_length,
        device=device,
        precision=spec.train.precision,
        tick=attempt.check,
        say=attempt.event,
    )
    missing = attempt.run.missing(evaluations)
    if missing:
        evaluate_model(
            model, context, missing, attempt.run, checkpoint=last_weights(attempt.run, spec)
        )


def _check_code(spec: RunSpec) -> None:
    here = run_code({layer.kind for layer in spec.model.layers}, spec.data.task)
    if here != spec.code:
        raise ValueError(
            f"the source code here has hash {here}, but the run was planned with {spec.code}; "
            "submit the experiment again, so that all its runs use one code"
        )


def _backends() -> dict[str, str]:
    """The backend that each kernel with a choice ran on."""
    return {kernel: ", ".join(names) for kernel, names in backends_used().items()}
