"""The language model: embedding, pre-norm layers of a mixer and a channel mixer, norm, head.

x <- x + Mixer(RMSNorm(x));   x <- x + MLP(RMSNorm(x))
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch_search.aliases import require_own_memory
from arch_search.autoencoder import Autoencoder
from arch_search.spec import LayerSpec, ModelSpec
from blocks.base import INITIAL_STD, SequenceMixer, State
from blocks.initialisation import Constant, Normal, Parameter, named_generator
from blocks.mixture import Experts, MixtureOfExperts
from blocks.registry import build, resolve_options
from blocks.swiglu import NoChannelMixer, SwiGLU
from kernels.cross_entropy import linear_cross_entropy
from kernels.cross_entropy.linear import IGNORED


class Layer(nn.Module):
    """One mixer and one channel mixer, each behind a norm and beside a residual."""

    def __init__(self, spec: LayerSpec, model: ModelSpec) -> None:
        super().__init__()
        width, depth = model.width, len(model.layers)
        options = resolve_options(spec.kind, spec.options, width=width)
        self.mixer_norm = nn.RMSNorm(width, eps=model.norm_eps)
        self.mixer: SequenceMixer = build(spec.kind, options, width=width, depth=depth)
        self.mlp = _channel_mixer(spec, width=width, depth=depth)
        absent = isinstance(self.mlp, NoChannelMixer)
        self.mlp_norm = None if absent else nn.RMSNorm(width, eps=model.norm_eps)

    def forward(self, x: Tensor, state: State | None, reset: Tensor | None) -> tuple[Tensor, State]:
        mixed, after = self.mixer(self.mixer_norm(x), state, reset=reset)
        x = x + mixed
        if self.mlp_norm is not None:
            x = x + self.mlp(self.mlp_norm(x))
        return x, after


def train_layer(layer: Layer, x: Tensor, reset: Tensor | None) -> Tensor:
    """A layer on whole sequences, from no state; the one after is dropped."""
    return layer(x, None, reset)[0]


def _channel_mixer(
    spec: LayerSpec, *, width: int, depth: int
) -> SwiGLU | MixtureOfExperts | NoChannelMixer:
    if spec.mlp_width == 0 and spec.experts is None:
        return NoChannelMixer()
    if spec.experts is None:
        return SwiGLU(width, spec.mlp_width, depth=depth)
    experts = Experts(
        count=spec.experts.count, active=spec.experts.active, width=spec.experts.width
    )
    return MixtureOfExperts(width, spec.mlp_width, experts, depth=depth)


class LanguageModel(nn.Module):
    """A causal language model from its frozen specification."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.train_layer = train_layer  # compiled by those who want it
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.layers = nn.ModuleList(Layer(layer, spec) for layer in spec.layers)
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.head = (
            None if spec.tie_embeddings else nn.Linear(spec.width, spec.vocabulary, bias=False)
        )
        self.decoder = Autoencoder(spec.width) if spec.decoder == "autoencoder" else None

    def forward(
        self, tokens: Tensor, states: list[State] | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Predict the next token at every position.

        Args:
            tokens: (B, T) int64.   states: what the piece before returned, one a layer.
            reset: (B, T) bool, True where a document begins and nothing before it may be seen.
        Returns:
            logits (B, T, U) and the states after the last token.
        """
        x, after = self.features(tokens, states, reset=reset)
        return self.logits(x), after

    def loss(self, tokens: Tensor, targets: Tensor, *, reset: Tensor | None = None) -> Tensor:
        """Sum of next-token cross-entropies in nats; many logits never exist at once.

        Args:
            tokens, targets: (B, T) int64, targets IGNORED where nothing is asked.
            reset: (B, T) bool, as in `forward`.
        """
        x = self.embedding(tokens)
        for layer in self.each_layer():
            x = self.train_layer(layer, x, reset)
        return linear_cross_entropy(self._read(x), self.head_weight, targets)

    def loss_and_states(
        self,
        tokens: Tensor,
        targets: Tensor,
        states: list[State] | None,
        *,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, list[State]]:
        """As `loss`, for a piece whose state is carried."""
        features, after = self.features(tokens, states, reset=reset)
        return linear_cross_entropy(features, self.head_weight, targets), after

    @property
    def head_weight(self) -> Tensor:
        """(U, D)."""
        return self.embedding.weight if self.head is None else self.head.weight

    def features(
        self, tokens: Tensor, states: list[State] | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """What the head reads, (B, T, D): `forward` without the vocabulary, which can be large."""
        x = self.embedding(tokens)
        after: list[State] = []
        for i, layer in enumerate(self.layers):
            x, state = layer(x, states[i] if states is not None else None, reset)
            after.append(state)
        return self._read(x), after

    def _read(self, x: Tensor) -> Tensor:
        """The last layer's output as the head reads it."""
        return self.norm(x) if self.decoder is None else self.decoder(self.norm(x))

    def logits(self, features: Tensor) -> Tensor:
        """The next token's logits, (…, U), from features (…, D)."""
        return F.linear(features, self.head_weight)

    def initial_states(self, batch: int, device: torch.device | str = "cpu") -> list[State]:
        """The states before the first token of `batch` sequences."""
        return [layer.mixer.initial_state(batch, device=device) for layer in self.each_layer()]

    def router_loss(self) -> Tensor | None:
        """What the last forward pass's routers add to the mean loss; None where there are none."""
        losses = [
            layer.mlp.router_loss
            for layer in self.each_layer()
            if isinstance(layer.mlp, MixtureOfExperts) and layer.mlp.router_loss is not None
        ]
        return torch.stack(losses).sum() if losses else None

    def each_layer(self) -> Iterator[Layer]:
        """The layers, in order."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer

    def declared_parameters(self) -> dict[str, Parameter]:
        """How every parameter starts and whether it is decayed, by its full name.

        Raises:
            RuntimeError: a block leaves one of its parameters undeclared, or declares one too many.
        """
        normal = Parameter(Normal(INITIAL_STD), decay=True)
        one = Parameter(Constant(1.0), decay=False)
        declared = {"embedding.weight": normal, "norm.weight": one}
        if self.head is not None:
            declared["head.weight"] = normal
        if self.decoder is not None:
            for name, parameter in self.decoder.declared_parameters().items():
                declared[f"decoder.{name}"] = parameter
        for i, layer in enumerate(self.each_layer()):
            declared[f"layers.{i}.mixer_norm.weight"] = one
            if layer.mlp_norm is not None:
                declared[f"layers.{i}.mlp_norm.weight"] = one
            for part, module in (("mixer", layer.mixer), ("mlp", layer.mlp)):
                for name, parameter in module.declared_parameters().items():
                    declared[f"layers.{i}.{part}.{name}"] = parameter
        there = {name for name, _ in self.named_parameters()}
        if there != declared.keys():
            odd = sorted(there ^ declared.keys())
            raise RuntimeError(f"declared parameters differ from those in the model: {odd}")
        return declared


def initialise(model: LanguageModel, seed: int) -> None:
    """Fill every parameter from (seed, its name, its shape) and its declared distribution.

    A layer's `init_salt` joins the names of its mixer's parameters, so that they are drawn anew.
    """
    declared = model.declared_parameters()
    salts = {
        f"layers.{i}.mixer.": layer.init_salt
        for i, layer in enumerate(model.spec.layers)
        if layer.init_salt
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            salt = next((salt for prefix, salt in salts.items() if name.startswith(prefix)), 0)
            drawn = f"{name}/salt {salt}" if salt else name
            start = declared[name].start
            value = start.sample(parameter.shape, named_generator(seed, drawn, parameter.shape))
            parameter.copy_(value)


def parameter_hashes(model: LanguageModel) -> dict[str, str]:
    """A short hash of each parameter's value, by which a shared start can be seen."""
    return {
        name: hashlib.sha256(parameter.detach().cpu().numpy().tobytes()).hexdigest()[:16]
        for name, parameter in (*model.named_parameters(), *model.named_buffers())
    }


def build_model(spec: ModelSpec, *, seed: int, device: torch.device | str = "cpu") -> LanguageModel:
    """A model on `device`, filled from `seed`."""
    model = LanguageModel(spec).to(device)
    initialise(model, seed)
    return model


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "sum") -> Tensor:
    """Cross-entropy in nats, computed in float32: logits (B, T, U), targets (B, T)."""
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        reduction=reduction,
        ignore_index=IGNORED,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCounts:
    """Exact sizes of a model. State and FLOPs are for sequences of the length counted for."""

    parameters: int
    active_parameters: int  # what one token uses: less than all in a mixture of experts
    mixer_parameters: int
    embedding_parameters: int
    state_elements: int
    forward_flops_per_token: float


def count_model(spec: ModelSpec, length: int) -> ModelCounts:
    """Count on the meta device: no memory, no weights.

    Raises:
        ValueError: options of a block that do not fit, or parameters that share memory.
    """
    with torch.device("meta"):
        model = LanguageModel(spec)
    model.declared_parameters()  # raises if a block forgot one
    require_own_memory(model)
    costs = [layer.mixer.cost(length) for layer in model.each_layer()]
    width = spec.width
    channels = [layer.mlp.cost() for layer in model.each_layer()]
    flops = sum(cost.forward_flops_per_token for cost in (*costs, *channels))
    flops += model.decoder.flops_per_token() if model.decoder is not None else 0
    parameters = sum(parameter.numel() for parameter in model.parameters())
    idle = sum(cost.parameters - cost.active_parameters for cost in channels)
    tables = 1 if spec.tie_embeddings else 2
    return ModelCounts(
        parameters=parameters,
        active_parameters=parameters - idle,
        mixer_parameters=sum(cost.parameters for cost in costs),
        embedding_parameters=tables * width * spec.vocabulary,
        state_elements=sum(
            cost.state_elements + cost.state_elements_per_token * length for cost in costs
        ),
        forward_flops_per_token=flops + 2 * width * spec.vocabulary,
    )


@torch.no_grad()
def branch_scales(model: LanguageModel, tokens: Tensor) -> dict[str, float]:
    """Root mean square of what each mixer adds to the residual stream, by layer.

    At step 0 this shows whether arms that share a start also start at one scale.
    """
    scales: dict[str, float] = {}
    handles = []
    for i, layer in enumerate(model.each_layer()):

        def record(_module: nn.Module, _inputs: object, output: tuple[Tensor, State], i: int = i):
            scales[f"layers.{i}.mixer"] = math.sqrt(output[0].float().square().mean().item())

        handles.append(layer.mixer.register_forward_hook(record))
    try:
        model.features(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return scales
