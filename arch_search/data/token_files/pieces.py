"""Several mapped ranges that read as one array."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from arch_search.data.token_files.base import Piece
from arch_search.errors import UsageError


class JoinedTokens:
    """Read-only, one-dimensional; takes what the stream asks of an array: slices and gathers."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts = [part for part in parts if len(part)]
        lengths = [len(part) for part in self._parts]
        self._begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.dtype = np.result_type(*self._parts) if self._parts else np.dtype(np.uint16)
        self.shape = (int(self._begins[-1]),)

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, places: slice) -> np.ndarray: ...
    @overload
    def __getitem__(self, places: np.ndarray) -> np.ndarray: ...
    @overload
    def __getitem__(self, places: int | np.integer) -> np.integer: ...
    def __getitem__(self, places: slice | np.ndarray | int | np.integer) -> Any:
        """Tokens at a slice (copied where it spans parts), or at an array of any shape."""
        if isinstance(places, slice):
            start, stop, step = places.indices(len(self))
            return self._range(start, stop)[::step]
        places = np.asarray(places)
        flat = places.ravel()
        owners = np.searchsorted(self._begins, flat, side="right") - 1
        found = np.empty(len(flat), self.dtype)
        for owner in np.unique(owners):
            here = owners == owner
            found[here] = self._parts[owner][flat[here] - self._begins[owner]]
        return found.reshape(places.shape)[()]

    def _range(self, start: int, stop: int) -> np.ndarray:
        if start >= stop:
            return np.empty(0, self.dtype)
        first = int(np.searchsorted(self._begins, start, side="right")) - 1
        last = int(np.searchsorted(self._begins, stop, side="left"))
        parts = [
            part[max(start - begin, 0) : stop - begin]
            for part, begin in zip(
                self._parts[first:last], self._begins[first:last].tolist(), strict=True
            )
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def map_pieces(pieces: Sequence[Piece]) -> "np.ndarray | JoinedTokens":
    """Map ranges of files into memory, each file once.

    Raises:
        UsageError: a file is gone or too short.
    """
    mapped: dict[str, np.ndarray] = {}
    parts = []
    for piece in pieces:
        if piece.path not in mapped:
            try:
                mapped[piece.path] = np.memmap(piece.path, np.uint8, mode="r")
            except (OSError, ValueError) as error:
                raise UsageError(f"token file {piece.path} cannot be read: {error}") from None
        dtype = np.dtype(piece.type).newbyteorder("<")
        end = piece.start + piece.count * dtype.itemsize
        if end > len(mapped[piece.path]):
            raise UsageError(
                f"token file {piece.path} has {len(mapped[piece.path])} bytes, fewer than the "
                f"{end} that it had"
            )
        parts.append(mapped[piece.path][piece.start : end].view(dtype))
    return parts[0] if len(parts) == 1 else JoinedTokens(parts)
