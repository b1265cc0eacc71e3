"""The evaluations that a study needs at a scale: its roles filled in, and the references that they imply."""

from typing import NamedTuple

from lethe.config import Recipe, Scale, Study, resolve
from lethe.errors import LetheError

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


def plan(study: Study, scale: Scale, tier: str) -> list[Cell]:
    """All cells of the study at this scale and tier, without repeats, in the order of the study file."""
    cells: dict[Cell, None] = {}
    for runs in study.runs:
        if runs.tier == "full" and tier == "core":
            continue
        seeds = scale.seeds.full if tier == "full" else scale.seeds.core
        for benchmark in _role(scale.roles.benchmarks, runs.benchmarks, f"studies/{study.name}: benchmarks", scale):
            for model in _role(scale.roles.models, runs.models, f"studies/{study.name}: models", scale):
                cells[Cell(benchmark, model, "retrain", REFERENCE_SEED, "none")] = None
                for recipe in runs.recipes:
                    for seed in seeds if runs.seeds == "all" else seeds[:1]:
                        for attack in runs.attacks:
                            cells[Cell(benchmark, model, scale.roles.recipes.get(recipe, recipe), seed, attack)] = None
    return list(cells)


def recipe_of(recipes: dict[str, dict], scale: Scale, run: str) -> Recipe:
    benchmark, model, name = run.split("/")
    return resolve(recipes, name, scale.settings, model, benchmark)


def _role(roles: dict[str, list[str]], role: str, where: str, scale: Scale) -> list[str]:
    if role not in roles:
        raise LetheError(f"config/{where}: scale '{scale.name}' has no role '{role}' (has: {', '.join(roles)})")
    return roles[role]
