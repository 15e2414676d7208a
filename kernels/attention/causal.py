"""Causal attention by torch: one kernel where nothing is masked, blocks of a window, or a mask."""

from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.reference import attention_reference, visible
from kernels.backends import Candidate, Signature, asked_for, choose, record_backend
from kernels.compiling import constant
from kernels.probing import disagreement

Backend = Literal["auto", "sdpa", "flex"]

BLOCK = 128  # queries that share their keys in a window, or as many as the window is long
DOCUMENT = 67  # tokens of the documents that a probe is made of


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    first: Tensor | None = None,
    window: int = 0,
    backend: Backend = "auto",
) -> Tensor:
    """y_t = sum_j p_tj v_j, p_t = softmax_j(q_t·k_j / sqrt(K)) over the keys j that t sees.

    Args:
        query: (B, T, N, K).   key: (B, S, Nk, K), Nk divides N.   value: (B, S, Nk, V). The last
            key stands at the last query, S >= T: those before come out of a cache.
        first: (B, T), the place among the keys where each query's document begins; None: all one.
        window: the latest keys that are seen, the query's own included; 0: all.
        backend: "sdpa" is torch's scaled_dot_product_attention, over blocks of queries where a
            window is short, so that no mask grows with S². "flex" is torch's FlexAttention, which
            leaves out what a mask hides; it trains whole rows on a GPU, the rest is sdpa's. "auto"
            takes it for those that a mask is needed for, where it proves right.
    Returns:
        y (B, T, N, V).
    Raises:
        ValueError: the backend's name is wrong.
        BackendUnavailable: a backend asked for by name did not prove right here.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    (B, T, N, K), S = query.shape, key.shape[1]
    window = 0 if window >= S else window
    trains = T == S > 1 and torch.is_grad_enabled()
    sizes = (N, key.shape[2], K, value.shape[-1], window, int(first is not None))
    chosen = _choose(backend, query.device, query.dtype, sizes, B, T, trains)
    if chosen == "flex":
        from kernels.attention.with_flex import attention_flex

        return attention_flex(query, key, value, first=first, window=window)
    if window and 2 * max(window, BLOCK) <= T:
        return _in_blocks(query, key, value, first, window, max(window, BLOCK))
    return _with_mask(query, key, value, first, window)


@constant
def flex_is_asked_for() -> bool:
    """Whether the run asked for FlexAttention by name, in rows without a mask, too."""
    return asked_for("attention", "auto") == "flex"


def _with_mask(
    query: Tensor, key: Tensor, value: Tensor, first: Tensor | None, window: int
) -> Tensor:
    (T, N), (S, Nk) = query.shape[1:3], key.shape[1:3]
    unmasked = first is None and (not window or window >= S)
    plain = unmasked and T == S
    every = unmasked and T == 1  # a token that is decoded sees all before it
    mask = None if plain or every else visible(T, S, first, window, query.device)[:, None]
    y = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        attn_mask=mask, is_causal=plain, enable_gqa=Nk != N,
    )  # fmt: skip
    return y.transpose(1, 2)


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, first: Tensor | None, window: int, block: int
) -> Tensor:
    """Blocks of `block` queries, each with the `window` keys before it and its own.

    The mask then has 2 T (window + block) elements instead of T S.
    """
    (B, T, N, _), (S, Nk) = query.shape, key.shape[1:3]
    blocks, seen = -(-T // block), block + window
    behind = blocks * block - T
    before = window - (S - T)  # keys that are missing in front of the first block's window
    key, value = (
        F.pad(x, (0, 0, 0, 0, before, behind)).unfold(1, seen, block).movedim(-1, 2).flatten(0, 1)
        for x in (key, value)
    )  # (B n, window + block, Nk, K)
    query = F.pad(query, (0, 0, 0, 0, 0, behind)).view(B * blocks, block, N, -1)
    place = torch.arange(blocks * block, device=query.device).view(blocks, block, 1)
    start = torch.arange(blocks, device=query.device)[:, None, None] * block
    index = start + torch.arange(seen, device=query.device)  # of a key among the padded ones
    allowed = (index <= place + window) & (index > place) & (index >= before)
    if first is not None:
        limit = F.pad(first + before, (0, behind)).view(B, blocks, block, 1)
        allowed = allowed & (index >= limit)
    # A query behind the last one sees itself, so that no row is empty.
    allowed = allowed | ((place >= T) & (index == place + window))
    mask = allowed.expand(B, blocks, block, seen).reshape(B * blocks, 1, block, seen)
    y = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        attn_mask=mask, enable_gqa=Nk != N,
    )  # fmt: skip
    return y.transpose(1, 2).reshape(B, blocks * block, N, -1)[:, :T]


@constant
def _choose(
    backend: Backend,
    device: torch.device,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    batch: int,
    length: int,
    trains: bool,
) -> Backend:
    names = ("N", "Nk", "K", "V", "window", "documents")
    signature = Signature(
        device=device, dtype=dtype, sizes=tuple(zip(names, sizes, strict=True)),
        batch=batch, length=length,
    )  # fmt: skip
    *_, window, documents = sizes
    by_name = asked_for("attention", backend) == "flex"
    flex = (Candidate(name="flex", probe=_probe_flex),)
    if by_name and not trains:
        record_backend("attention", "sdpa", "flex trains whole rows alone")
        return "sdpa"
    fast = flex if trains and (window or documents or by_name) else ()
    return cast(Backend, choose("attention", backend, signature, fast=fast, plain="sdpa"))


def _probe_flex(signature: Signature) -> str | None:
    if signature.device.type != "cuda":
        return "its compiled kernels need a GPU"
    from kernels.attention.with_flex import attention_flex

    sizes, window = dict(signature.sizes), dict(signature.sizes)["window"]

    def documents(x: Tensor) -> Tensor | None:
        place = torch.arange(x.shape[1], device=x.device)
        return (place - place % DOCUMENT).expand(len(x), -1) if sizes["documents"] else None

    def run(query: Tensor, **rest: Tensor) -> list[Tensor]:
        return [attention_flex(query, **rest, first=documents(query), window=window)]

    def reference(query: Tensor, **rest: Tensor) -> list[Tensor]:
        return [attention_reference(query, **rest, first=documents(query), window=window)]

    return disagreement(run, reference, probe_inputs(signature), signature)


def probe_inputs(signature: Signature) -> dict[str, Tensor]:
    """Queries, keys and values of unit scale."""
    sizes, generator = dict(signature.sizes), torch.Generator(signature.device).manual_seed(0)
    shapes = {"query": ("N", "K"), "key": ("Nk", "K"), "value": ("Nk", "V")}
    return {
        name: torch.randn(
            signature.batch, signature.length, sizes[heads], sizes[size],
            generator=generator, device=signature.device,
        ).to(signature.dtype)
        for name, (heads, size) in shapes.items()
    }  # fmt: skip
