"""Which backend each kernel runs on: asked for by name, or the first that proves right here.

A fast backend is never trusted for being importable. It is tried once for each device, dtype and
head size, forward and backward, at the run's own shapes against our reference, and what was chosen
and why is kept for the run's record. Free of torch, so that an experiment file is checked early.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.errors import BackendUnavailable

BACKENDS: dict[str, tuple[str, ...]] = {
    "attention": ("sdpa", "flex"),
    "convolution": ("torch", "fla", "causal_conv1d", "triton"),
    "cross_entropy": ("full", "chunked", "triton"),
    "gated_delta": ("loop", "chunked", "fla"),
    "gated_norm": ("torch", "triton"),
    "gru": ("loop", "torch", "triton"),
    "lstm": ("loop", "torch", "triton"),
    "m2rnn": ("loop", "torch", "triton"),
    "m2rnn_layer": ("parts", "whole"),
    "rnn": ("loop", "torch", "triton"),
    "ssd": ("loop", "chunked", "mamba_ssm"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What a choice is made for. Only `sizes` tell signatures apart, not the batch and length."""

    device: Any  # torch.device
    dtype: Any  # torch.dtype
    sizes: tuple[tuple[str, int], ...]  # heads and head sizes, by name
    batch: int
    length: int

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes)
        return f"{self.device}, {str(self.dtype).removeprefix('torch.')}, {sizes}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A fast backend. `probe` runs it at a signature: None if it is right, else why it is not."""

    name: str
    probe: Callable[[Signature], str | None]


_used: dict[str, dict[str, str]] = {}  # kernel -> backend -> reason
_asked: dict[str, str] = {}
_probed: dict[tuple, str | None] = {}


def check_names(asked: Mapping[str, str]) -> None:
    """Raises ValueError for a kernel or backend that there is not; names those that there are."""
    for kernel, backend in asked.items():
        if kernel not in BACKENDS:
            raise ValueError(f"unknown kernel {kernel!r}; expected one of {', '.join(BACKENDS)}")
        if backend not in (allowed := ("auto", *BACKENDS[kernel])):
            raise ValueError(
                f"backend of {kernel} is {backend!r}; expected one of {', '.join(allowed)}"
            )


def ask_for(asked: Mapping[str, str]) -> None:
    """From now on `auto` means these backends, by kernel; raises ValueError as `check_names`."""
    check_names(asked)
    _asked.clear()
    _asked.update(asked)


def asked_for(kernel: str, backend: str) -> str:
    """`backend`, or what the run asked for where that is "auto"."""
    return _asked.get(kernel, "auto") if backend == "auto" else backend


def choose(
    kernel: str,
    backend: str,
    signature: Signature,
    *,
    fast: tuple[Candidate, ...],
    plain: str,
) -> str:
    """The backend to run `kernel` on; recorded with its reason.

    Args:
        backend: a name, or "auto": the first of `fast` that proves right, else `plain`.
    Raises:
        BackendUnavailable: a backend asked for by name did not prove right here.
    """
    backend = asked_for(kernel, backend)
    reasons = []
    for candidate in fast:
        if backend not in ("auto", candidate.name):
            continue
        why_not = _try(kernel, candidate, signature)
        if why_not is None:
            record_backend(kernel, candidate.name, "agrees with the reference")
            return candidate.name
        if backend != "auto":
            raise BackendUnavailable(
                f"{kernel} cannot run on the backend {backend!r} ({signature}): {why_not}. "
                f"Ask for another of {', '.join(BACKENDS[kernel])}, or for auto"
            )
        reasons.append(f"{candidate.name}: {why_not}")
    chosen = plain if backend == "auto" else backend
    record_backend(kernel, chosen, "; ".join(reasons) if backend == "auto" else "asked for")
    return chosen


def _try(kernel: str, candidate: Candidate, signature: Signature) -> str | None:
    """Why a candidate cannot be used; tried once a process for what tells signatures apart."""
    key = (kernel, candidate.name, str(signature.device), str(signature.dtype), signature.sizes)
    if key not in _probed:
        from torch import inference_mode

        try:
            with inference_mode(mode=False):  # an evaluation may ask first; there are no gradients
                _probed[key] = candidate.probe(signature)
        except ImportError as error:
            _probed[key] = f"{error.name or 'a module'} cannot be imported ({error})"
        except Exception as error:  # a kernel library may raise anything; none of it stops `auto`
            said = str(error).strip().splitlines() or [""]
            _probed[key] = f"{type(error).__name__}: {said[0]}"
    return _probed[key]


def record_backend(kernel: str, backend: str, reason: str = "") -> None:
    """Remember that `kernel` ran on `backend`, and the first reason that was given for it."""
    known = _used.setdefault(kernel, {})
    known[backend] = known.get(backend) or reason


def backends_used() -> dict[str, list[str]]:
    """The backends that each kernel has run on since `forget_backends`, sorted."""
    return {kernel: sorted(names) for kernel, names in sorted(_used.items())}


def backend_reasons() -> dict[str, str]:
    """Why each of them was taken, by "kernel: backend", where there is something to say."""
    return {
        f"{kernel}: {backend}": reason
        for kernel, names in sorted(_used.items())
        for backend, reason in sorted(names.items())
        if reason
    }


def forget_backends() -> None:
    """Begin a new record: a worker process serves one run after another."""
    _used.clear()
