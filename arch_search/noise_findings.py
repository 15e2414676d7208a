"""Where the noise of the arms is not equal, and what the arm's own seeds then say."""

from collections.abc import Iterator

import pandas as pd

from arch_search.statistics.unequal import NoisiestArm, paired_interval


def noise_sentences(
    noisiest: NoisiestArm | None, table: pd.DataFrame, baseline: str, comparisons: int
) -> Iterator[str]:
    """Said only if one arm's noise stands out."""
    if noisiest is None or noisiest.p > 0.05 or noisiest.ratio <= 1:
        return
    said = (
        f"{noisiest.arm} varies {noisiest.ratio:.2g} times as much as the other arms once seeds "
        f"are blocks (p = {noisiest.p:.2g}). What concerns it is counted with its own noise, which "
        "so few runs tell roughly: such intervals hold somewhat less often than they say."
    )
    own = None
    if noisiest.arm != baseline:
        own = paired_interval(table, noisiest.arm, baseline, comparisons=comparisons)
    if own is not None:
        low, high = (f"{end:+.3g}".replace("-", "−") for end in own)
        said += (
            f" From its own and the baseline's seeds alone the difference is in [{low}, {high}]. "
            "It widens the intervals of the others, too, whose noise is pooled with its own: "
            "submitted without it and under another name, they are compared from the same runs."
        )
    yield said
