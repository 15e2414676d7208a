"""Where the noise of the arms is not equal, and what the arm's own seeds then say."""

from collections.abc import Iterator

import pandas as pd

from arch_search.statistics.unequal import NoisiestArm, paired_interval


def noise_sentences(
    noisiest: NoisiestArm | None, table: pd.DataFrame, baseline: str, comparisons: int
) -> Iterator[str]:
    """Said only if one arm's noise stands out; its pooled interval is then too narrow."""
    if noisiest is None or noisiest.p > 0.05 or noisiest.ratio <= 1:
        return
    said = (
        f"{noisiest.arm} varies {noisiest.ratio:.2g} times as much as the other arms once seeds "
        f"are blocks (p = {noisiest.p:.2g}), and intervals pool the "
        "noise: what concerns it is less sure than its interval says."
    )
    own = None
    if noisiest.arm != baseline:
        own = paired_interval(table, noisiest.arm, baseline, comparisons=comparisons)
    if own is not None:
        low, high = (f"{end:+.3g}".replace("-", "−") for end in own)
        said += (
            f" From its own and the baseline's seeds alone the difference is in [{low}, {high}]."
        )
    yield said
