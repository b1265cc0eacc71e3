"""Watched runs, read for figures: the steps of curves.csv.gz, where they cross an alpha, where their runs stopped."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lethe.errors import LetheError
from lethe.paper.data import PaperData, recipe_name

SCORES = ("violation_rate", "forget_rouge", "forget_value_recall", "retain_rouge", "forget_prob", "retain_prob")


def curves(data: PaperData, benchmark: str, recipe: str) -> pd.DataFrame:
    """The watched steps of a recipe of the main model; maybe none."""
    found = data.summary.curves()
    found = found[found["benchmark"] == benchmark]
    found = found[(found["model"] == data.roles.main_of(benchmark)) & (found["recipe"] == recipe)]
    for column in (*SCORES, "step", "forget_tokens", "steps_cpu_s", "steps_wall_s"):
        found = found.assign(**{column: pd.to_numeric(found[column])})
    return found.sort_values(["seed", "step"], ignore_index=True)


def first_below(curve: pd.DataFrame, alpha: float) -> pd.Series | None:
    """The first watched step with a violation rate of at most alpha; None where it is never met."""
    met = curve[curve["violation_rate"] <= alpha]
    return met.iloc[0] if len(met) else None


def crossings(curve: pd.DataFrame, alpha: float, column: str) -> dict[int, float]:
    """`column` at the first watched step that meets alpha, of every seed that meets it."""
    found = [first_below(own, alpha) for _, own in curve.groupby("seed")]
    return {int(at["seed"]): float(at[column]) for at in found if at is not None}


def stopped(curve: pd.DataFrame, stops: dict[int, float]) -> pd.DataFrame:
    """A row a seed: the last watched step not after the one where that seed's own run stopped."""
    rows = [curve[(curve["seed"] == s) & (curve["step"] <= step)].tail(1) for s, step in stops.items()]
    return pd.concat(rows, ignore_index=True) if rows else curve.head(0)


def forget_metric(data: PaperData, benchmark: str) -> str:
    """Recall of the facts' words where the data have them, else ROUGE-L."""
    valued = curves(data, benchmark, "masc")["forget_value_recall"].notna().any()
    return "forget_value_recall" if valued else "forget_rouge"


def watched_benchmarks(data: PaperData) -> list[str]:
    """The headline benchmarks on which MASC was watched. LetheError: none."""
    found = [b for b in data.headline("tofu") if len(curves(data, b, "masc"))]
    if not found:
        raise LetheError(f"the summary has no watched run of {recipe_name('masc')} on {data.roles.main}")
    return found


def alpha_of(data: PaperData, benchmark: str) -> float:
    found = data.run_values(benchmark, "masc", "alpha")
    return float(np.mean(list(found.values()))) if found else math.nan


def stops_of(data: PaperData, benchmark: str) -> dict[int, float]:
    return data.run_values(benchmark, "masc", "steps")


def learning_rate_of(data: PaperData, benchmark: str) -> float:
    runs = data.runs_of(benchmark, ["masc"])
    specs = runs["spec"].dropna().tolist() if "spec" in runs else []
    return float(json.loads(specs[0])["optimizer"]["lr"]) if specs else math.nan


def first_seed(values: dict[int, float]) -> float:
    return values[min(values)] if values else math.nan


def printed_first(data: PaperData, place: str, metric: str) -> float:
    rows = [row for row in data.reported.rows_of(place, benchmark="TOFU") if row["metric"] == metric]
    return float(rows[0]["value"]) if rows else math.nan


def averaged(data: PaperData, benchmark: str, recipes: Sequence[str]) -> pd.DataFrame:
    """recipe, benchmark, step, forget_tokens, mean and std over seeds of every score, n_seeds."""
    parts = []
    for recipe in recipes:
        groups = curves(data, benchmark, recipe).groupby("step")
        if not len(groups):
            continue
        frame = pd.DataFrame({"forget_tokens": groups["forget_tokens"].mean()})
        for score in SCORES:
            frame[f"{score}_mean"], frame[f"{score}_std"] = groups[score].mean(), groups[score].std(ddof=1)
        frame["n_seeds"] = groups["seed"].nunique()
        frame = frame.reset_index()
        frame.insert(0, "recipe", recipe)
        frame.insert(1, "benchmark", benchmark)
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)
