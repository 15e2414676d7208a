"""The decay gate of Mamba-2, Gated DeltaNet and M²RNN (m2rnn paper, §3; Mamba-2's A and dt)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocks.initialisation import InverseSoftplusLogUniform, LogUniformRate, Parameter

A_RANGE = (0.0, 16.0)
DT_RANGE = (1e-3, 1e-1)
DT_FLOOR = 1e-4


class SoftplusDecay(nn.Module):
    """log f = -exp(A_log) softplus(a + dt_bias), one A and one dt a head; always float32 or wider.

    At its start f spans many time scales: A ~ U(`rate`), dt log-uniform on `step`.
    """

    def __init__(
        self,
        heads: int,
        *,
        rate: tuple[float, float] = A_RANGE,
        step: tuple[float, float] = DT_RANGE,
        floor: float = DT_FLOOR,
    ) -> None:
        super().__init__()
        self.rate, self.step, self.floor = rate, step, floor
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))

    def forward(self, a: Tensor) -> Tensor:
        """a (B, T, N) -> the logarithm of the decay, (B, T, N)."""
        return self.with_step(a)[0]

    def with_step(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """a (B, T, N) -> the logarithm of the decay and dt = softplus(a + dt_bias)."""
        with torch.autocast(a.device.type, enabled=False):
            wide = a if a.dtype == torch.float64 else a.float()
            dt = F.softplus(wide + self.dt_bias)
            return -self.A_log.exp() * dt, dt

    def declared_parameters(self) -> dict[str, Parameter]:
        """Neither is decayed."""
        return {
            "A_log": Parameter(LogUniformRate(*self.rate), decay=False, role="rate"),
            "dt_bias": Parameter(
                InverseSoftplusLogUniform(*self.step, floor=self.floor), decay=False, role="step"
            ),
        }


def prefixed(prefix: str, declared: dict[str, Parameter]) -> dict[str, Parameter]:
    """The declarations of a submodule under its name in the module that owns it."""
    return {f"{prefix}.{name}": parameter for name, parameter in declared.items()}
