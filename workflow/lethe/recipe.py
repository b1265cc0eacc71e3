"""Recipes: one unlearning or training method with all its settings, from config/recipes.yaml."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from lethe import paths
from lethe.errors import LetheError
from lethe.schema import Strict, merge, read_yaml, validate

Reduction = Literal["per_token", "per_sequence"]


class CrossEntropy(Strict):
    loss: Literal["ce"]
    weight: NonNegativeFloat = 1.0
    reduction: Reduction


class KL(Strict):
    """KL(start || current) over the full vocabulary."""

    loss: Literal["kl"]
    weight: NonNegativeFloat = 1.0
    reduction: Reduction


class ActivationMatch(Strict):
    """RMU's retain loss: activations at its layer stay those of the starting model."""

    loss: Literal["activation_match"]
    weight: NonNegativeFloat = 1.0


class GradientAscent(Strict):
    loss: Literal["ga"]
    weight: PositiveFloat = 1.0
    reduction: Reduction


class NPO(Strict):
    loss: Literal["npo"]
    weight: PositiveFloat = 1.0
    beta: PositiveFloat


class SimNPO(Strict):
    loss: Literal["simnpo"]
    weight: PositiveFloat = 1.0
    beta: PositiveFloat
    delta: float


class IdkDPO(Strict):
    """DPO that prefers a refusal (drawn anew every epoch) to the answer."""

    loss: Literal["idk_dpo"]
    weight: PositiveFloat = 1.0
    beta: PositiveFloat


class RMU(Strict):
    """Activations are steered to `coefficient` times a random direction of length 1, drawn by the run's seed.

    depth: which layer's output, as a share of all layers (.25 is the 8th of 32, the first of 2). unit: the coefficient
    counts in units of the activations themselves (`absolute`, as published) or of the mean length of the starting
    model's activations on the forget set (`activations`: the same setting serves models of any size)."""

    loss: Literal["rmu"]
    weight: PositiveFloat = 1.0
    depth: float = Field(gt=0, le=1)
    coefficient: PositiveFloat
    unit: Literal["absolute", "activations"]


class Continuation(Strict):
    """Train on a suffix of each answer (released MASC code): cut at a share drawn from U(cut)."""

    cut: tuple[float, float]
    min_prefix: PositiveInt
    min_suffix: PositiveInt


class MarginHinge(Strict):
    loss: Literal["margin_hinge"]
    weight: PositiveFloat = 1.0
    k: PositiveInt
    beta: PositiveFloat
    rho: float = Field(gt=0, lt=1)
    eta: PositiveFloat
    alternatives: Literal["current", "base"]
    within: PositiveFloat | None = None
    reduction: Reduction
    continuation: Continuation | None = None


Forget = Annotated[GradientAscent | NPO | SimNPO | IdkDPO | RMU | MarginHinge, Field(discriminator="loss")]
Retain = Annotated[CrossEntropy | KL | ActivationMatch, Field(discriminator="loss")]


class Margin(Strict):
    """A violation: restricted margin over k alternatives at inverse temperature beta above log(rho / (1 - rho))."""

    k: PositiveInt
    beta: PositiveFloat
    rho: float = Field(gt=0, lt=1)


class Budget(Strict):
    rule: Literal["budget"]


class ViolationRate(Strict):
    """Stop at the first step s >= 0 with violation rate <= alpha; `alpha: retrain` takes the retrained model's rate.
    `margin` says what a violation is; null takes it from the forget loss (margin_hinge)."""

    rule: Literal["violation_rate"]
    margin: Margin | None = None
    alpha: Annotated[float, Field(ge=0, le=1)] | Literal["retrain"]
    every: PositiveInt
    trigger: NonNegativeInt  # 0: no first stage
    confirm: PositiveInt
    probe: Literal["leading", "random"]


class Matched(Strict):
    """As many steps as the run of recipe `like` with the same seed took."""

    rule: Literal["matched"]


Stop = Annotated[Budget | ViolationRate | Matched, Field(discriminator="rule")]


class Start(Strict):
    """A starting model moved towards a quantiser's grid: Q(w) + residue (w - Q(w)) for every weight that it rounds.
    0: a checkpoint that 4 bits hold without loss; 1: the model as it is."""

    grid: str
    residue: float = Field(ge=0, le=1)


class Trained(Strict):
    """Only the weights of these modules (last part of their names) in the `layers` layers that end with RMU's."""

    modules: list[str] = Field(min_length=1)
    layers: PositiveInt


class LoRA(Strict):
    r: PositiveInt
    alpha: PositiveInt
    dropout: float = Field(ge=0, lt=1)
    targets: list[str]


class Optimizer(Strict):
    name: Literal["adamw", "paged_adamw_32bit"]
    lr: NonNegativeFloat
    betas: tuple[float, float]
    eps: PositiveFloat
    weight_decay: NonNegativeFloat
    schedule: Literal["constant", "linear"]
    warmup: NonNegativeFloat  # epochs
    clip: PositiveFloat | None


class Batch(Strict):
    """Rows a device sees in one micro-batch, and micro-batches a step. `effective` is asserted, so that a change of
    hardware cannot silently change the method: effective = rows x accumulate x processes."""

    rows: PositiveInt
    accumulate: PositiveInt
    effective: PositiveInt

    def check(self, processes: int) -> None:
        product = self.rows * self.accumulate * processes
        if product != self.effective:
            raise LetheError(
                f"recipe: batch.effective must be rows x accumulate x processes, got {self.effective} "
                f"for {self.rows} x {self.accumulate} x {processes} = {product}"
            )


class Chunks(Strict):
    """Long texts are learned in windows of `window` tokens, each with a BOS of its own where `bos` is true, or is
    `auto` and the tokenizer has one. The first `overlap` tokens of a window repeat the end of the one before, as
    context. tail: what is shorter than a window at a text's end is kept as it is (`keep`), left out (`drop`), or made
    whole by moving its window back (`shift`). paragraphs: windows hold whole paragraphs where these are not longer."""

    window: PositiveInt
    overlap: NonNegativeInt = 0
    bos: bool | Literal["auto"] = "auto"
    tail: Literal["keep", "drop", "shift"] = "keep"
    paragraphs: bool = False


class Precision(Strict):
    """Weights, gradients and optimiser states are float32; autocast and the saved file may use fewer bits.
    autocast `auto`: bfloat16 on a GPU, none on a CPU. save `start`: as the model the run starts from."""

    autocast: Literal["none", "bfloat16", "auto"] = "auto"
    gradient_checkpointing: bool = False
    save: Literal["float32", "bfloat16", "start"] = "start"


class Recipe(Strict):
    """One entry of recipes.yaml, resolved for a scale, model and benchmark: everything that changes a number.

    A recipe of method `finetune` learns the rows of `data` with its retain loss. One of method `random` moves every
    weight matrix that the run of recipe `like` moved, by as much, in a random direction. One of method `task_vector`
    goes `strength` times as far from the start as learning the forget set with the retain loss went, the other way
    (Ilharco et al. 2023). `chunks`: how rows that are texts are cut; without, at max_length. `system` replaces the
    system prompt of the model's template, in unlearning alone. `shuffle_answers` gives every forget question the answer
    of another one. `own_order`: rows come in an order of the recipe's own, not of the seed alone; for a recipe that
    differs from another in its stop only, and would else be the same run wherever both stop at one step."""

    name: str
    method: Literal["none", "finetune", "gradient", "random", "task_vector"]
    data: Literal["pretrain", "full", "retain"] | None = None
    replay: NonNegativeInt = 0
    shuffle: bool = True
    start: Start | None = None
    like: str | None = None
    system: str | None = None
    shuffle_answers: bool = False
    own_order: bool = False
    trained: Trained | None = None
    forget: Forget | None = None
    retain: Retain | None = None
    stop: Stop | None = None
    adapter: LoRA | None = None
    optimizer: Optimizer | None = None
    batch: Batch | None = None
    epochs: PositiveInt | None = None
    epoch: Literal["forget", "longest"] = "forget"
    precision: Precision = Precision()
    max_length: PositiveInt = 512
    chunks: Chunks | None = None
    strength: PositiveFloat | None = None

    @model_validator(mode="after")
    def _complete(self) -> "Recipe":
        training = ("optimizer", "batch", "epochs")
        need = {
            "none": (),
            "finetune": ("data", "retain", *training),
            "gradient": ("forget", "stop", *training),
            "random": ("like",),
            "task_vector": ("retain", "strength", *training),
        }[self.method]
        for field in need:
            if getattr(self, field) is None:
                raise ValueError(f"a recipe with method: {self.method} needs '{field}'")
        if self.method in ("finetune", "task_vector") and (self.forget or self.stop):
            raise ValueError(f"a recipe with method: {self.method} takes no forget loss and no stop rule")
        return self

    @model_validator(mode="after")
    def _stop_has_a_margin(self) -> "Recipe":
        if isinstance(self.stop, ViolationRate) and not self.margin:
            raise ValueError("stop.margin is needed where the forget loss is not margin_hinge")
        if isinstance(self.stop, Matched) and self.like is None:
            raise ValueError("stop.rule matched needs 'like', the recipe whose steps are counted")
        return self

    @model_validator(mode="after")
    def _rmu_has_its_layer(self) -> "Recipe":
        for field, used in (("trained", self.trained), ("retain.loss activation_match", self._matches_activations)):
            if used and not isinstance(self.forget, RMU):
                raise ValueError(f"{field} goes with the forget loss rmu, whose layer it takes")
        if isinstance(self.forget, RMU) and self.retain and not self._matches_activations:
            raise ValueError(
                f"forget.loss rmu computes no logits: its retain loss is activation_match, got {self.retain.loss}"
            )
        if self.trained and self.adapter:
            raise ValueError("trained goes without an adapter, which says itself what is trained")
        return self

    @property
    def _matches_activations(self) -> bool:
        return isinstance(self.retain, ActivationMatch)

    @property
    def margin(self) -> Margin | None:
        """What the stop rule counts as a violation."""
        if isinstance(self.stop, ViolationRate) and self.stop.margin:
            return self.stop.margin
        if isinstance(self.forget, MarginHinge):
            return Margin(k=self.forget.k, beta=self.forget.beta, rho=self.forget.rho)
        return None

    @property
    def unlearns(self) -> bool:
        """Whether it makes a run of its own out of the target."""
        return self.method in ("gradient", "random", "task_vector") or (
            self.method == "none" and self.start is not None
        )

    @property
    def needs_refusals(self) -> bool:
        return isinstance(self.forget, IdkDPO)

    @property
    def needs_retrain(self) -> bool:
        return isinstance(self.stop, ViolationRate) and self.stop.alpha == "retrain"


def recipes_file() -> Path:
    """The project's recipes.yaml: in the working directory, beside the sources, or inside an installed package."""
    here = Path(__file__).resolve()
    for candidate in (Path(paths.RECIPES), here.parents[2] / paths.RECIPES, here.parent / "recipes.yaml"):
        if candidate.is_file():
            return candidate
    raise LetheError(f"{paths.RECIPES}: no such file")


def load_recipes(path: str | Path | None = None) -> dict[str, dict]:
    """The raw entries by name; `resolve` makes one a Recipe."""
    path = Path(path) if path else recipes_file()
    raw = read_yaml(path)
    for name, entry in raw.items():
        if not isinstance(entry, dict):
            raise LetheError(f"{path}: recipes.{name} must be a mapping, got {entry!r}")
    return raw


def resolve(
    recipes: dict[str, dict],
    name: str,
    settings: Iterable[str] = (),
    *,
    model: str = "",
    corpus: str = "",
    benchmark: str = "",
) -> Recipe:
    """The recipe `name` at these settings: its parent (`from`) resolved first, then its own values, then those under
    `at` for each setting (a scale's), and within it for the model, the corpus, the benchmark. The most specific wins.

    `masc+nf4` is the recipe masc with the values of the entry nf4 on top: for what is crossed with many recipes."""
    value: dict[str, Any] = {"name": name}
    for part in name.split("+"):
        if part not in recipes:
            raise LetheError(f"{paths.RECIPES}: no recipe '{part}' (has: {', '.join(recipes)})")
        value = merge(value, _resolve(recipes, part, list(settings), [model, corpus, benchmark]))
    return validate(Recipe, value, f"{paths.RECIPES}: recipes.{name}")


def _resolve(recipes: dict[str, dict], name: str, settings: list[str], places: list[str]) -> dict:
    entry = dict(recipes[name])
    at, parent = entry.pop("at", {}), entry.pop("from", None)
    if parent is not None and parent not in recipes:
        raise LetheError(f"{paths.RECIPES}: recipes.{name}.from: no recipe '{parent}' (has: {', '.join(recipes)})")
    value = merge(_resolve(recipes, parent, settings, places) if parent else {}, entry)
    for setting in settings:
        special = dict(at.get(setting, {}))
        inner = {key: special.pop(key) for key in list(special) if key not in Recipe.model_fields}
        for override in (special, *(inner.get(place, {}) for place in places)):
            value = merge(value, override)
    return value


def set_values(recipe: dict, assignments: Iterable[str]) -> dict:
    """Apply `key.subkey=value` (value in YAML) to a raw recipe entry."""
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise LetheError(f"--set: expected key=value, got '{text}'")
        override: Any = yaml.safe_load(value)
        for part in reversed(key.split(".")):
            override = {part: override}
        recipe = merge(recipe, override)
    return recipe
