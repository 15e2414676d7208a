"""On which documents arms differ, each against the baseline's runs of the same seeds.

How far it reaches: the trained models are given, and documents are drawn anew. It says whether
other documents of this kind would show the difference; not whether other seeds would.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from arch_search.records import Experiment, table
from arch_search.statistics.ratio import bootstrap_ratio

FEW = 20  # documents; percentile intervals from fewer are too narrow
REACH = (
    "Intervals over documents hold for these trained models on other documents of this kind. They "
    "do not hold for other seeds: the noise between seeds is not in them, and they settle nothing "
    "that the seeds leave open."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentDifference:
    """An arm minus the baseline over all documents, in bits per byte, with bootstrap over them."""

    arm: str
    value: float
    low: float
    high: float
    documents: int
    better: int  # on so many documents the arm is better than the baseline
    seeds: int


def document_table(experiment: Experiment) -> pd.DataFrame:
    """Columns arm, document, bytes, nats (arm minus baseline, mean over common seeds), difference
    (in bits per byte), seeds. Empty if no evaluation kept its documents."""
    documents = table(experiment, "documents")
    columns = ["arm", "document", "bytes", "nats", "difference", "seeds"]
    if documents.empty:
        return pd.DataFrame(columns=columns)
    documents = documents.loc[documents["task"] == documents["task"].iloc[0]]
    baseline = experiment.baseline.name
    base = documents.loc[documents["arm"] == baseline, ["seed", "document", "nats"]]
    others = documents.loc[documents["arm"] != baseline]
    joined = others.merge(base, on=["seed", "document"], suffixes=("", "_baseline"))
    joined["nats"] = joined["nats"] - joined["nats_baseline"]
    mean = joined.groupby(["arm", "document", "bytes"], sort=False, as_index=False).agg(
        nats=("nats", "mean"), seeds=("seed", "nunique")
    )
    return mean.assign(difference=mean["nats"] / (math.log(2) * mean["bytes"]))[columns]


def document_differences(
    experiment: Experiment, *, resamples: int = 2_000
) -> tuple[DocumentDifference, ...]:
    """The sum of the differences in bits over the sum of the bytes, for each arm.

    All arms are resampled with the same documents, so that they can be compared with each other.
    """
    documents = document_table(experiment)
    if documents.empty:
        return ()
    arms = [arm.name for arm in experiment.plan.arms if arm.name in set(documents["arm"])]
    wide = documents.pivot(index="document", columns="arm", values="nats")[arms].dropna()
    size = documents.drop_duplicates("document").set_index("document")["bytes"].loc[wide.index]
    if len(wide) < 2:
        return ()
    bits = wide.to_numpy(float).T / math.log(2)
    found = bootstrap_ratio(bits, size.to_numpy(float), resamples=resamples)
    seeds = dict(zip(documents["arm"], documents["seeds"], strict=True))
    return tuple(
        DocumentDifference(
            arm=arm,
            value=one.value,
            low=one.low,
            high=one.high,
            documents=len(wide),
            better=int(np.sum(row < 0)),
            seeds=int(seeds[arm]),
        )
        for arm, one, row in zip(arms, found, bits, strict=True)
    )
