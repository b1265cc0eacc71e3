"""MUSE's metrics (Shi et al. 2024) and their companions, as arithmetic on the per-item table of items.py.

VerbMem, KnowMem and PrivLeak lie on MUSE's scale of 0 to 100, probabilities, rates and AUCs between 0 and 1 as in
tofu.py. VerbMem and KnowMem are mean ROUGE-L F1 without a stemmer; `.ou` is OpenUnlearning's variant, stemmed and
against the uncut gold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lethe.metrics.estimates import (
    Estimate,
    Split,
    auc,
    join,
    margins,
    membership_aucs,
    privleak,
    require_other_values,
    split_of,
)
from lethe.metrics.items import MUSE_FIELDS, MUSE_UNATTACKED, difference, of_split
from lethe.metrics.rouge import coverage_note

FORGET_SIDE = "attacks are scored on the forget side only"


def muse_metrics(
    items: pd.DataFrame,
    reference_items: pd.DataFrame | None = None,
    *,
    missing: Mapping[str, str] | None = None,
    published: float | None = None,
    forget_only: bool = False,
    name: str = "the evaluation",
    reference_name: str = "the reference",
    no_reference: str = "no reference: needs the retrained model's items",
    bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Every metric of one evaluation by name, each {"value", "n", "lo", "hi", "reason"}, as in tofu.tofu_metrics.

    items, reference_items: tables of items.py, of the model and of the retrained model. missing: split -> why the
    benchmark has no such file. published: the AUC of min-k that was published for the retrained model. A reference on
    other membership texts gives no PrivLeak, and says so. LetheError: a table that is its own reference.
    """
    if reference_items is not None:
        require_other_values(items, reference_items, name, reference_name)
    absent = {split: f"no items of split '{split}' ({split}.jsonl)" for split in MUSE_FIELDS} | dict(missing or {})
    absent |= dict.fromkeys(MUSE_UNATTACKED, FORGET_SIDE) if forget_only else {}
    splits = {split: split_of(items, split, bootstrap, seed, absent[split]) for split in MUSE_FIELDS}

    metrics = _verbatim(splits["verbatim_forget"])
    for side in ("forget", "retain"):
        metrics |= _knowledge(splits[f"knowledge_{side}"], side)
    metrics |= _membership(splits, reference_items, published, no_reference)
    metrics |= _memorisation(splits["forget"])
    metrics |= margins(splits["forget"])
    return {key: estimate.as_dict() for key, estimate in metrics.items()}


def _verbatim(split: Split) -> dict[str, Estimate]:
    """VerbMem: how much of the true continuation a forget text's beginning still brings out."""
    return {
        "verbmem.forget": _rouge(split, "rouge_l_f1"),
        "verbmem.forget.ou": _rouge(split, "rouge_l_f1_ou"),
        "verbmem.forget.recall": _rouge(split, "rouge_l_recall"),
    }


def _knowledge(split: Split, side: str) -> dict[str, Estimate]:
    """KnowMem: answers to questions about the texts, given in-context examples."""
    return {
        f"knowmem.{side}": _rouge(split, "rouge_l_f1"),
        f"knowmem.{side}.ou": _rouge(split, "rouge_l_f1_ou"),
    }


def _rouge(split: Split, column: str) -> Estimate:
    cut = int(np.nansum(split.column("truncated")))
    note = join(
        f"{cut} of {len(split.frame)} prompts cut at max_length to their last tokens" if cut else None,
        coverage_note(split.frame["answer"]),
    )
    return split.mean(100 * split.column(column), needs=(column,), note=note)


def _membership(
    splits: Mapping[str, Split], reference_items: pd.DataFrame | None, published: float | None, no_reference: str
) -> dict[str, Estimate]:
    """AUCs of the membership scores, and PrivLeak on min-k over whole texts (raw text has no end token)."""
    forget, retain, holdout = (splits[f"member_{of}"] for of in ("forget", "retain", "holdout"))
    out = {key: _with_cuts(estimate, forget, holdout) for key, estimate in membership_aucs(forget, holdout).items()}
    # Neither unlearned nor unseen: far below .5 for a model that still knows its retain texts.
    kept = auc(retain, holdout, retain.column("min_k"), holdout.column("min_k"), "min_k")
    out["mia.retain_min_k_auc"] = _with_cuts(kept, retain, holdout)

    own, reference = out["mia.min_k_auc"], _reference_auc(forget, holdout, reference_items, no_reference)
    measured = None if reference.value is None else f"against the retrained model's own AUC {reference.value:.3f}"
    out["privleak"] = privleak(own, reference, measured)
    constant = Estimate(published, reason="no published reference AUC for this benchmark")
    if own.samples is not None and published is not None:
        constant = Estimate(published, samples=np.full(len(own.samples), published))
    out["privleak.published"] = privleak(own, constant, None if published is None else f"against the AUC {published}")
    return out


def _reference_auc(forget: Split, holdout: Split, reference_items: pd.DataFrame | None, no_reference: str) -> Estimate:
    """The reference's own AUC of min-k. Its items are the model's, so it shares their resamples."""
    if reference_items is None:
        return Estimate(None, reason=no_reference)
    theirs = [of_split(reference_items, split.name) for split in (forget, holdout)]
    for split, frame in zip((forget, holdout), theirs, strict=True):
        if frame.empty:
            return Estimate(None, reason=f"the reference has no items of split '{split.name}'")
        if found := difference(split.frame, frame, "texts"):
            return Estimate(None, reason=f"the reference's split '{split.name}' has {found}")
    return auc(forget, holdout, theirs[0]["min_k"].to_numpy(), theirs[1]["min_k"].to_numpy(), "min_k")


def _with_cuts(estimate: Estimate, *splits: Split) -> Estimate:
    """The estimate with a note on texts that were not read whole."""
    cut = np.concatenate([split.column("truncated") for split in splits])
    if estimate.value is None or not cut.any():
        return estimate
    return replace(estimate, reason=join(estimate.reason, f"{int(cut.sum())} of {len(cut)} texts cut at max_length"))


def _memorisation(forget: Split) -> dict[str, Estimate]:
    """Means over the windows in which forget texts are read."""
    return {
        "forget.prob": forget.mean(np.exp(-forget.column("nll")), needs=("nll",)),
        **{
            f"forget.{column}": forget.mean(forget.column(column), needs=(column,))
            for column in ("exact_memorization", "extraction_strength")
        },
    }
