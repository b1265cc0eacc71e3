"""What an artefact is made of: one PaperData, and the words in which papers name recipes, scores and benchmarks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.analysis.powerlaw import load_fits
from lethe.analysis.summary import Roles, Summary, load_summary, over_seeds, read_csv
from lethe.errors import LetheError

# Recipes in the order of every table and legend, by the names the papers print. Any other follows, under its own name.
RECIPES = {
    "base": "Before fine-tuning",
    "target": "Base",
    "retrain": "Retrain",
    "ga": "GA",
    "graddiff": "GradDiff",
    "npo": "NPO",
    "npo-klr": "NPO+KLR",
    "task-vector": "Task Vector",
    "rmu": "RMU",
    "rmu-down": "RMU (down)",
    "idk-dpo": "IDK-DPO",
    "simnpo": "SimNPO",
    "simnpo-small": "SimNPO (small steps)",
    "masc": "MASC",
    "masc-full": "MASC (full)",
}
# The methods that a study compares; the summary has controls and variants besides.
HEADLINE = (
    "target", "retrain", "ga", "graddiff", "npo", "npo-klr", "task-vector", "rmu", "rmu-down", "idk-dpo", "simnpo",
    "masc", "masc-full",
)  # fmt: skip
REFERENCES = ("target", "retrain")  # models that are no method: never timed, never on a Pareto front


@dataclass(frozen=True)
class Score:
    """A metric of metrics.csv as a table or axis shows it: itself or `top` minus it, in units of `scale`, with `digits`
    decimals.

    The reported numbers have it by its `label`, as it is shown; or, where `printed` is given, by that metric and split,
    as it is in metrics.csv. Where forgetting without end moves it without end, `overshoots` is true, and a table shows
    the distance to the retrained model beside it.
    """

    metric: str
    label: str
    top: float | None = None
    overshoots: bool = False
    scale: float = 1.0
    digits: int = 3
    printed: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return self.metric if self.top is None else f"{self.top:g}-{self.metric}"

    def of(self, values: Any) -> Any:
        values = values / self.scale
        return values if self.top is None else self.top - values


@dataclass(frozen=True)
class Suite:
    """How an evaluation suite is read: `forget` scores are efficacy (higher means forgotten; figures average them),
    `utility` is what unlearning must keep, both from 0 to 1. `shown` is what the main table prints, utility last,
    `probes` stand beside it, `retained` is what an attack may bring back. `recall` says what is left of the forget set:
    the first that has values. `initial` and `scaling` belong to the scaling study, `kept` are forget quality and what
    is left of the rest."""

    forget: tuple[Score, ...]
    utility: tuple[Score, ...]
    shown: tuple[Score, ...]
    retained: tuple[Score, ...]
    recall: tuple[Score, ...]
    probes: tuple[Score, ...] = ()
    initial: tuple[Score, ...] = ()
    scaling: tuple[Score, ...] = ()
    kept: tuple[Score, ...] = ()


E_ROUGE = Score("forget.rouge_l_recall", "E-ROUGE")
P_ROUGE = Score("forget.para_rouge_l_recall", "P-ROUGE")
VALUE = Score("forget.value_recall", "Value recall")
P_VALUE = Score("forget.para_value_recall", "Value recall (para)")
UTILITY = Score("model_utility", "MU")
EFFICACY = (
    Score("forget.rouge_l_recall", "1-ROUGE-L", top=1, overshoots=True),
    Score("forget.prob", "1-Prob", top=1, overshoots=True),
    Score("forget.truth_ratio.geo", "Truth Ratio", overshoots=True),
)
# MUSE's scores lie between 0 and 100.
VERBMEM = Score("verbmem.forget", "VerbMem(f)", overshoots=True, digits=2, printed=("VerbMem", "forget"))
KNOWMEM = Score("knowmem.forget", "KnowMem(f)", overshoots=True, digits=2, printed=("KnowMem", "forget"))
KNOWMEM_RETAIN = Score("knowmem.retain", "KnowMem(r)", digits=2, printed=("KnowMem", "retain"))
SUITES = {
    "tofu": Suite(
        forget=EFFICACY,
        utility=(UTILITY,),
        shown=(*EFFICACY, UTILITY),
        recall=(Score("forget.value_recall", "value recall"), Score("forget.rouge_l_recall", "ROUGE-L recall")),
        probes=(
            Score("forget.value_recall", "1-Value recall", top=1, overshoots=True),
            Score("forget.mcq_acc", "1-MCQ", top=1, overshoots=True),
        ),
        retained=(
            Score("forget.rouge_l_recall", "ROUGE-L", overshoots=True),
            Score("forget.prob", "Prob", overshoots=True),
            Score("forget.truth_ratio.geo", "Truth Ratio", overshoots=True),
            Score("forget.value_recall", "Value recall", overshoots=True),
            Score("forget.mcq_acc", "MCQ", overshoots=True),
        ),
        initial=(Score("forget.extraction_strength", "ES"), E_ROUGE, P_ROUGE, VALUE, P_VALUE),
        scaling=(E_ROUGE, P_ROUGE, VALUE, P_VALUE, UTILITY),
        kept=(
            Score("forget_quality.p", "FQ"),
            Score("forget_quality.log10p", "log10 FQ"),
            UTILITY,
            Score("retain.rouge_l_recall", "Retain ROUGE"),
            Score("retain.prob", "Retain Prob"),
            Score("retain.truth_ratio.geo", "Retain TR"),
            Score("retain.mcq_acc", "MCQ retain"),
            Score("forget.mcq_acc", "MCQ forget", overshoots=True),
        ),
    ),
    "muse": Suite(
        forget=(
            replace(VERBMEM, label="1-VerbMem(f)", top=1, scale=100, digits=3),
            replace(KNOWMEM, label="1-KnowMem(f)", top=1, scale=100, digits=3),
        ),
        utility=(replace(KNOWMEM_RETAIN, scale=100, digits=3),),
        shown=(VERBMEM, KNOWMEM, KNOWMEM_RETAIN),
        retained=(VERBMEM, KNOWMEM),
        recall=(replace(VERBMEM, label="VerbMem"),),
    ),
}


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it; second-hand if it was copied from an account of the paper."""

    value: float
    std: float | None
    second_hand: bool


class Reported:
    """The numbers a paper prints (config/reported/{study}.csv)."""

    COLUMNS = ("paper", "table_or_figure", "benchmark", "split", "model", "method", "metric", "value", "unit", "note")

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.rows = read_csv(path, self.COLUMNS).to_dict("records")

    def rows_of(self, place: str, **where: str) -> list[dict[str, Any]]:
        """Rows of a table or figure, by its name in the column table_or_figure and any other columns."""
        where["table_or_figure"] = place
        return [row for row in self.rows if all(row[column] == wanted for column, wanted in where.items())]

    def models(self, place: str, **where: str) -> list[str]:
        """The models that a table or figure is printed for."""
        return list(dict.fromkeys(row["model"] for row in self.rows_of(place, **where)))

    def find(self, place: str, metric: str, **where: str) -> Printed | None:
        """The number printed for `metric` (or `metric`_mean with its `metric`_std), None if there is none."""
        rows = self.rows_of(place, **where)
        means = [row for row in rows if row["metric"] in (metric, f"{metric}_mean")]
        if not means:
            return None
        if len(means) > 1:
            raise LetheError(f"{self.path}: {place}, {metric}, {where}: one number expected, got {len(means)}")
        stds = [float(row["value"]) for row in rows if row["metric"] == f"{metric}_std"]
        return Printed(
            value=float(means[0]["value"]),
            std=stds[0] if stds else None,
            second_hand="second-hand" in str(means[0]["note"]),
        )

    def score(self, place: str, score: Score, **where: str) -> Printed | None:
        """The number printed for a score, as we show it."""
        if score.printed is None:
            return self.find(place, score.label, **where)
        metric, split = score.printed
        if (found := self.find(place, metric, split=split, **where)) is None:
            return None
        std = None if found.std is None else found.std / score.scale
        return replace(found, value=float(score.of(found.value)), std=std)


@dataclass(frozen=True)
class PaperData:
    """Everything that a table or figure may read."""

    summary: Summary
    fits: pd.DataFrame
    roles: Roles
    reported: Reported

    @classmethod
    def load(
        cls, summary_dir: str | Path, roles: Mapping[str, Any], reported_csv: str | Path, fits_csv: str | Path
    ) -> "PaperData":
        return cls(load_summary(summary_dir), load_fits(fits_csv), Roles.from_json(roles), Reported(reported_csv))

    def suite(self, benchmark: str) -> Suite:
        name = self.roles.suite(benchmark)
        if name not in SUITES:
            raise LetheError(f"benchmark {benchmark}: no suite '{name}' (has: {', '.join(SUITES)})")
        return SUITES[name]

    def headline(self, suite: str) -> list[str]:
        """The benchmarks of an evaluation suite that panels show."""
        return [b for b in dict.fromkeys(self.roles.headline.values()) if self.roles.suite(b) == suite]

    def corpora(self) -> list[str]:
        """What artefacts of both suites show: TOFU's headline, and those of MUSE's benchmarks that ran."""
        return [*self.headline("tofu"), *self.evaluated("muse")]

    def evaluated(self, role: str) -> list[str]:
        """The benchmarks of a role that have evaluations."""
        return [b for b in self.roles.benchmarks.get(role, ()) if self.ran(b, HEADLINE)]

    def per_seed(
        self,
        benchmark: str,
        scores: Sequence[Score],
        attacks: Sequence[str] = ("none",),
        recipes: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Scores of the main model: a row a recipe, attack and seed in printed order, a column `Score.name` a score.

        recipes: only these, in this order; all in printed order where it is None. Left out are recipes that are stages
        of the scaling study, and the retrain seed that is everybody's reference (unless it is the only one): the
        retrain row is its other seeds, which show the noise floor. NaN where metrics.csv has no value.
        """
        metrics = list(dict.fromkeys(s.metric for s in scores))
        model = self.roles.main_of(benchmark)
        rows = self.summary.select(benchmark=benchmark, model=model, attack=attacks, metric=metrics)
        rows = rows[~rows["recipe"].isin(self._stages()) if recipes is None else rows["recipe"].isin(recipes)]
        rows = self._without_reference_seed(benchmark, rows)
        wide = rows.pivot(index=["recipe", "attack", "seed"], columns="metric", values="value")
        wide = wide.reindex(columns=metrics).reset_index()
        shown = wide[["recipe", "attack", "seed"]].assign(**{s.name: s.of(wide[s.metric]) for s in scores})
        place = {name: i for i, name in enumerate([*(recipes or in_order(shown["recipe"])), *attacks])}
        return shown.sort_values(
            ["recipe", "attack", "seed"], key=lambda c: c if c.name == "seed" else c.map(place), ignore_index=True
        )

    def with_times(self, benchmark: str, per_seed: pd.DataFrame) -> pd.DataFrame:
        """Add `time_cpu_s` and `time_wall_s` of each run; NaN for the references, whose training is no unlearning."""
        times = self.summary.times()
        times = times[(times["benchmark"] == benchmark) & (times["model"] == self.roles.main_of(benchmark))]
        wide = per_seed.merge(times[["recipe", "seed", "time_cpu_s", "time_wall_s"]], on=["recipe", "seed"], how="left")
        wide.loc[wide["recipe"].isin(REFERENCES), ["time_cpu_s", "time_wall_s"]] = float("nan")
        return wide

    def reference(self, benchmark: str, score: Score) -> float:
        """What every row and attack is held against: the score of retrain's first seed, unattacked; NaN without one."""
        retrained = self._by_seed.get((benchmark, "retrain", score.metric, "none"))
        return float(score.of(retrained[min(retrained)])) if retrained else float("nan")

    def is_reference(self, benchmark: str, per_seed: pd.DataFrame) -> pd.Series:
        """Which rows of `per_seed` are the reference itself (there is one where retrain has a single seed)."""
        return self._is_reference_seed(benchmark, per_seed) & (per_seed["attack"] == "none")

    def values(self, benchmark: str, recipe: str, metric: str, attack: str = "none") -> dict[int, float]:
        """A metric of the main model by seed; seeds without a value are left out."""
        found = self._by_seed.get((benchmark, recipe, metric, attack), {})
        return {seed: value for seed, value in found.items() if not isnan(value)}

    @cached_property
    def _by_seed(self) -> dict[tuple[str, str, str, str], dict[int, float]]:
        """What `values` looks up: by benchmark, recipe, metric and attack; NaN where metrics.csv has no value."""
        rows = self.summary.metrics
        rows = rows[rows["model"] == rows["benchmark"].map(self.roles.main_of)]
        found: dict[tuple[str, str, str, str], dict[int, float]] = {}
        columns = (rows[c] for c in ("benchmark", "recipe", "metric", "attack", "seed", "value"))
        for benchmark, recipe, metric, attack, seed, value in zip(*columns, strict=True):
            found.setdefault((benchmark, recipe, metric, attack), {})[int(seed)] = float(value)
        return found

    def runs_of(self, benchmark: str, recipes: Sequence[str]) -> pd.DataFrame:
        """Rows of runs.csv of the main model."""
        runs = self.summary.runs
        here = (runs["benchmark"] == benchmark) & (runs["model"] == self.roles.main_of(benchmark))
        return runs[here & runs["recipe"].isin(recipes)]

    def run_values(self, benchmark: str, recipe: str, column: str) -> dict[int, float]:
        """A number of runs.csv by seed (or `time_cpu_s`, `time_wall_s`), where there is one."""
        runs = self.runs_of(benchmark, [recipe])
        if column.startswith("time_"):
            runs = runs.merge(self.summary.times(), on=["benchmark", "model", "recipe", "seed"])
        if column not in runs:
            return {}
        numbers = pd.to_numeric(runs[column], errors="coerce")
        return {int(s): float(v) for s, v in zip(runs["seed"], numbers, strict=True) if not pd.isna(v)}

    def ran(self, benchmark: str, recipes: Sequence[str]) -> list[str]:
        """Those of the recipes that the main model has an evaluation of."""
        found = {recipe for place, recipe, _, _ in self._by_seed if place == benchmark}
        return [recipe for recipe in recipes if recipe in found]

    def gaps(
        self,
        benchmark: str,
        scores: Sequence[Score],
        attacks: Sequence[str] = ("none",),
        recipes: Sequence[str] | None = None,
    ) -> list[str]:
        """One line for each score that a row averages over fewer seeds than it states, or not at all."""
        names = {s.metric: s.label for s in scores}
        model = self.roles.main_of(benchmark)
        rows = self.summary.select(benchmark=benchmark, model=model, attack=attacks, metric=list(names))
        rows = self._without_reference_seed(benchmark, rows)
        rows = rows[rows["value"].isna() & ~rows["recipe"].isin(self._stages())]
        if recipes is not None:
            rows = rows[rows["recipe"].isin(recipes)]
        return [
            f"{recipe_name(recipe)}{'' if attack == 'none' else f' under {attack}'}: no {names[metric]} for seed "
            f"{', '.join(map(str, group['seed']))} ({'; '.join(group['reason'].unique())})"
            for (recipe, attack, metric), group in rows.groupby(["recipe", "attack", "metric"], sort=False)
        ]

    def n_params(self, model: str) -> int:
        sizes = self.summary.sizes().set_index("model")["size"]
        if model not in sizes:
            raise LetheError(f"{self.summary.folder / 'metrics.csv'}: no rows for model '{model}'")
        return int(sizes[model])

    def place(self, benchmarks: Iterable[str] = ()) -> str:
        """Where our numbers come from: "mini, w128 (0.66M parameters)", with all models that the benchmarks show."""
        models = dict.fromkeys(map(self.roles.main_of, benchmarks)) or {self.roles.main: None}
        return f"{self.roles.scale}, {' and '.join(f'{m} ({parameters(self.n_params(m))})' for m in models)}"

    def _without_reference_seed(self, benchmark: str, rows: pd.DataFrame) -> pd.DataFrame:
        """The retrain row is the other seeds, unless there is only one."""
        alone = rows.loc[rows["recipe"] == "retrain", "seed"].nunique() <= 1
        return rows if alone else rows[~self._is_reference_seed(benchmark, rows)]

    def _is_reference_seed(self, benchmark: str, rows: pd.DataFrame) -> pd.Series:
        model = self.roles.main_of(benchmark)
        retrained = self.summary.select(benchmark=benchmark, model=model, recipe="retrain", attack="none")
        return (rows["recipe"] == "retrain") & (rows["seed"] == retrained["seed"].min())

    def _stages(self) -> set[str]:
        return {"base", self.roles.learning} - set(REFERENCES)


def summarise(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over seeds of the rows of `per_seed`, by recipe and attack."""
    return over_seeds(per_seed, by=["recipe", "attack"])


VARIANTS = {
    "masc-random": "Random update of MASC's size",
    "masc-shuffled": "MASC (shuffled answers)",
    "graddiff-stop": "GradDiff (MASC's stop)",
    "simnpo-stop": "SimNPO (MASC's stop)",
    "graddiff-lora": "GradDiff (MASC's training)",
    "simnpo-lora": "SimNPO (MASC's training)",
    "masc-noretain": "MASC (no retain loss)",
    "masc-base": "MASC (alternatives of the start)",
    "masc-offbatch": "MASC (off-batch probe)",
    "masc-pooled": "MASC (pooled tokens)",
    "masc-suffix": "MASC (continuation mask)",
    "masc-scaling": "MASC (settings of the scaling runs)",
    "masc-alpha": "MASC (the other alpha)",
    "masc-system": "MASC (system prompt)",
    "masc-k100": "MASC (k = 100)",
    "masc-k1000": "MASC (k = 1000)",
}


def in_order(recipes: Iterable[str]) -> list[str]:
    """Distinct recipes in printed order, unknown ones after, by name."""
    known = list(RECIPES)
    return sorted(set(recipes), key=lambda r: (known.index(r) if r in RECIPES else len(known), r))


def recipe_name(recipe: str) -> str:
    """`masc+nf4` is MASC, wherever it started from."""
    plain = recipe.partition("+")[0].replace("untouched", "target")
    return RECIPES.get(plain) or VARIANTS.get(plain, plain)


def parameters(n: float) -> str:
    """A parameter count for people: 660,480 -> '0.66M parameters'."""
    unit, size = ("B", 1e9) if n >= 1e9 else ("M", 1e6)
    return f"{n / size:.2f}{unit} parameters"
