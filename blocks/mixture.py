"""A mixture of experts as channel mixer, as the M²RNN paper's 7B models have it (m2rnn.md §1.1)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocks.base import INITIAL_STD, ChannelCost
from blocks.decay_gate import prefixed
from blocks.initialisation import Normal, Parameter
from blocks.linear import Linear
from blocks.options import require_positive
from blocks.swiglu import SwiGLU

LOAD_BALANCE, Z_LOSS = 1e-3, 1e-4  # what the paper's training adds to the loss, per layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """E = `count` experts of `width` hidden channels, of which a token chooses A = `active`."""

    count: int
    active: int
    width: int

    def __post_init__(self) -> None:
        require_positive(self, "count", "active", "width")
        if self.active > self.count:
            raise ValueError(f"active is {self.active}; there are {self.count} experts to choose")


class MixtureOfExperts(nn.Module):
    """y = sum over the A best of E experts of p_e SwiGLU_e(x), plus a shared SwiGLU(x).

    p is the softmax over the router's A largest logits. No token is dropped. After a forward pass
    `router_loss` holds what training adds: 1e-3 E Σ_e f_e P_e, f the share of choices that fell on
    e and P its mean probability (Switch, arXiv 2101.03961), and 1e-4 mean (log Σ exp logits)².
    """

    initial_std: float = INITIAL_STD

    def __init__(self, width: int, shared: int, experts: Experts, *, depth: int) -> None:
        """Build for model width `width`; `shared` channels for all tokens (0: none)."""
        super().__init__()
        self.experts, self.width, self.depth = experts, width, depth
        E, hidden = experts.count, experts.width
        self.router = Linear(width, E)
        self.input = nn.Parameter(torch.empty(E, 2 * hidden, width))  # gate, up
        self.output = nn.Parameter(torch.empty(E, width, hidden))
        self.shared = SwiGLU(width, shared, depth=depth) if shared else None
        self.router_loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D). A loop over the experts, each over the tokens that chose it."""
        tokens = x.flatten(0, -2)
        logits = self.router(tokens)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        best, chosen = logits.topk(self.experts.active, dim=-1)  # (T, A)
        weights = best.softmax(dim=-1)
        self.router_loss = router_loss(logits, chosen)
        y = torch.zeros_like(tokens) if self.shared is None else self.shared(tokens)
        for expert in range(self.experts.count):
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            if len(rows):
                gate, up = F.linear(tokens[rows], self.input[expert]).chunk(2, dim=-1)
                out = F.linear(F.silu(gate) * up, self.output[expert])
                y = y.index_add(0, rows, (out * weights[rows, slots, None]).to(y.dtype))
        return y.view_as(x)

    def declared_parameters(self) -> dict[str, Parameter]:
        """How each parameter starts and whether it is decayed."""
        std = self.initial_std
        read = Parameter(Normal(std), decay=True)
        write = Parameter(Normal(std / math.sqrt(2 * self.depth)), decay=True)
        declared = {"router.weight": read, "input": read, "output": write}
        if self.shared is not None:
            self.shared.initial_std = std
            declared |= prefixed("shared", self.shared.declared_parameters())
        return declared

    def cost(self) -> ChannelCost:
        """Counts; a token uses the router, its A experts and the shared one."""
        E, expert = self.experts.count, 3 * self.width * self.experts.width
        shared = 0 if self.shared is None else self.shared.cost().parameters
        always = self.width * E + shared
        active = always + self.experts.active * expert
        return ChannelCost(
            parameters=always + E * expert,
            active_parameters=active,
            forward_flops_per_token=2 * active,
        )


def router_loss(logits: Tensor, chosen: Tensor) -> Tensor:
    """Load balance and z-loss of one layer: logits (T, E), chosen (T, A)."""
    experts = logits.shape[-1]
    share = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
    balance = experts * (share * logits.softmax(dim=-1).mean(dim=0)).sum()
    return LOAD_BALANCE * balance + Z_LOSS * logits.logsumexp(dim=-1).square().mean()
