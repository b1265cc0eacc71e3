"""The evaluations that a study needs at a scale: its roles filled in, and the references that they imply."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from lethe import paths
from lethe.config import Scale, Study, StudyCurves, StudyRuns, Watch
from lethe.errors import LetheError
from lethe.recipe import Recipe, resolve

REFERENCE_SEED = 0  # unlearning starts from target s0 and is compared with retrain s0, whatever the run's own seed


class Cell(NamedTuple):
    benchmark: str
    model: str
    recipe: str
    seed: int
    attack: str

    @property
    def run(self) -> str:
        return f"{self.benchmark}/{self.model}/{self.recipe}"


class Curve(NamedTuple):
    """A run that is watched while it trains."""

    benchmark: str
    model: str
    recipe: str
    seed: int
    watch: Watch

    @property
    def run(self) -> str:
        return f"{self.benchmark}/{self.model}/{self.recipe}"


def plan(study: Study, scale: Scale, tier: str) -> list[Cell]:
    """All cells of the study at this scale and tier, without repeats, in the order of the study file."""
    cells: dict[Cell, None] = {}
    for runs in study.runs:
        for benchmark, model, seeds in _places(study, scale, tier, runs):
            cells[Cell(reference_of(scale, benchmark), model, "retrain", REFERENCE_SEED, "none")] = None
            for recipe in _recipes(study, scale, runs.recipes):
                for seed in seeds:
                    if seed != REFERENCE_SEED and _is_given(scale, benchmark, model, recipe):
                        continue
                    for attack in runs.attacks:
                        cells[Cell(benchmark, model, recipe, seed, attack)] = None
    return list(cells)


def plan_curves(study: Study, scale: Scale, tier: str) -> list[Curve]:
    """All watched runs of the study at this scale and tier."""
    return [
        Curve(benchmark, model, recipe, seed, curves.watch)
        for curves in study.curves
        for benchmark, model, seeds in _places(study, scale, tier, curves)
        for recipe in _recipes(study, scale, curves.recipes)
        for seed in seeds
    ]


def _main_models(study: Study, scale: Scale) -> dict[str, str]:
    """The model that a benchmark's tables show: the first that the study runs on it."""
    shown: dict[str, str] = {}
    for runs in study.runs:
        for benchmark in scale.roles.benchmarks.get(runs.benchmarks, []):
            for model in scale.roles.models.get(runs.models, [])[:1]:
                shown.setdefault(benchmark, model)
    return shown


def reference_of(scale: Scale, benchmark: str) -> str:
    """The benchmark whose retrained model this one is compared with: itself, unless it names another."""
    return scale.benchmarks[benchmark].reference or benchmark


def _places(study: Study, scale: Scale, tier: str, runs: StudyRuns | StudyCurves) -> Iterator[tuple[str, str, list]]:
    """Benchmark, model and seeds of a part of the study; nothing where the tier leaves it out."""
    if runs.tier == "full" and tier == "core":
        return
    seeds = scale.seeds.full if tier == "full" else scale.seeds.core
    benchmarks = _role(scale.roles.benchmarks, runs.benchmarks, f"studies/{study.name}: benchmarks", scale)
    for benchmark in benchmarks[:1] if runs.headline else benchmarks:
        for model in _role(scale.roles.models, runs.models, f"studies/{study.name}: models", scale):
            yield benchmark, model, seeds if runs.seeds == "all" else seeds[:1]


def _recipes(study: Study, scale: Scale, names: list[str]) -> list[str]:
    """The recipes of a list, where a name may be a role that stands for several."""
    roles = study.recipes | scale.roles.recipes
    return [recipe for name in names for recipe in roles.get(name, [name])]


def _is_given(scale: Scale, benchmark: str, model: str, recipe: str) -> bool:
    """A released target or retrained model is one model: it has no further seeds, and neither has the model before
    fine-tuning."""
    released = {"target": scale.benchmarks[benchmark].corpus in scale.models[model].targets}
    released |= {"base": True, "retrain": benchmark in scale.models[model].retrained}
    return released.get(recipe, False)


def recipe_of(recipes: dict[str, dict], scale: Scale, run: str) -> Recipe:
    benchmark, model, name = run.split("/")
    corpus = scale.benchmarks[benchmark].corpus
    return resolve(recipes, name, scale.settings, model=model, corpus=corpus, benchmark=benchmark)


def run_folder(scale: Scale, run: str, seed: int | str) -> str:
    """Where a run's run.json and trace.csv lie: runs of `target` and `base` are models that others start from."""
    benchmark, model, recipe = run.split("/")
    if recipe == "base":
        return paths.base(scale.name, model)
    if recipe == "target":
        return paths.target(scale.name, model, scale.benchmarks[benchmark].corpus, seed)
    return paths.seed(scale.name, run, seed)


def weights(scale: Scale, run: str, seed: int | str) -> str:
    """The model folder of a run, in Hugging Face format."""
    folder = run_folder(scale, run, seed)
    return folder if run.rsplit("/", 1)[1] in ("base", "target") else f"{folder}/weights"


def paper_roles(study: Study, scale: Scale) -> dict[str, Any]:
    """What tables and figures know of a scale: which benchmarks, models and recipes the roles of a study stand for."""
    return {
        "scale": scale.name,
        "benchmarks": scale.roles.benchmarks,
        "headline": {role: names[0] for role, names in scale.roles.benchmarks.items() if names},
        "models": {
            "main": scale.roles.models["main"][0],
            "of": _main_models(study, scale),
            "ladder": scale.roles.models["ladder"],
            "printed": {name: model.printed for name, model in scale.models.items() if model.printed},
        },
        "learning": _recipes(study, scale, ["learning"])[0],
        "suites": {name: benchmark.suite for name, benchmark in scale.benchmarks.items()},
    }


def _role(roles: dict[str, list[str]], role: str, where: str, scale: Scale) -> list[str]:
    if role not in roles:
        raise LetheError(f"config/{where}: scale '{scale.name}' has no role '{role}' (has: {', '.join(roles)})")
    return roles[role]
