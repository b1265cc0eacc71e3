"""What a reproduction consists of: recipes, scales and studies, read from YAML and checked before any work.

A recipe is one unlearning method with all its settings; a scale maps the roles of a study to models, data and seeds; a
study lists the runs a paper needs in terms of roles. Unknown keys are errors everywhere.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from lethe import paths
from lethe.errors import LetheError


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# ---------------------------------------------------------------------------------------------- recipes

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


Forget = Annotated[GradientAscent | NPO | SimNPO | MarginHinge, Field(discriminator="loss")]
Retain = Annotated[CrossEntropy | KL, Field(discriminator="loss")]


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
    trigger: PositiveInt
    confirm: PositiveInt
    probe: Literal["leading", "random"]


Stop = Annotated[Budget | ViolationRate, Field(discriminator="rule")]


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


class Precision(Strict):
    """Weights, gradients and optimiser states are float32; autocast and the saved file may use fewer bits.
    autocast `auto`: bfloat16 on a GPU, none on a CPU. save `start`: as the model the run starts from."""

    autocast: Literal["none", "bfloat16", "auto"] = "auto"
    gradient_checkpointing: bool = False
    save: Literal["float32", "bfloat16", "start"] = "start"


class Recipe(Strict):
    """One entry of recipes.yaml, resolved for a scale, model and benchmark: everything that changes a number.

    A recipe of method `finetune` learns the rows of `data` with its retain loss."""

    name: str
    method: Literal["none", "finetune", "gradient"]
    data: Literal["pretrain", "full", "retain"] | None = None
    replay: NonNegativeInt = 0
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

    @model_validator(mode="after")
    def _complete(self) -> "Recipe":
        if self.method == "none":
            return self
        need = {"finetune": ("data", "retain"), "gradient": ("forget", "stop")}[self.method]
        for field in (*need, "optimizer", "batch", "epochs"):
            if getattr(self, field) is None:
                raise ValueError(f"a recipe with method: {self.method} needs '{field}'")
        if self.method == "finetune" and (self.forget or self.stop):
            raise ValueError("a recipe with method: finetune takes no forget loss and no stop rule")
        return self

    @model_validator(mode="after")
    def _stop_has_a_margin(self) -> "Recipe":
        if isinstance(self.stop, ViolationRate) and not self.margin:
            raise ValueError("stop.margin is needed where the forget loss is not margin_hinge")
        return self

    @property
    def margin(self) -> Margin | None:
        """What the stop rule counts as a violation."""
        if isinstance(self.stop, ViolationRate) and self.stop.margin:
            return self.stop.margin
        if isinstance(self.forget, MarginHinge):
            return Margin(k=self.forget.k, beta=self.forget.beta, rho=self.forget.rho)
        return None

    @property
    def needs_retrain(self) -> bool:
        return isinstance(self.stop, ViolationRate) and self.stop.alpha == "retrain"


# ---------------------------------------------------------------------------------------------- scales


class HubSource(Strict):
    hub: str
    revision: str


class LocalSource(Strict):
    local: str


class WorldSeed(Strict):
    seed: int


class WorldSource(Strict):
    world: WorldSeed


class Subset(Strict):
    forget: str
    retain: str


class Corpus(Strict):
    source: WorldSource | LocalSource | HubSource
    subset: Subset | None = None


class Benchmark(Strict):
    corpus: str
    suite: Literal["tofu"]
    forget: str


class TinyModel(Strict):
    """A randomly initialised model; `tokenizer: world` is the one trained on the embedded world."""

    architecture: Literal["qwen2", "llama", "phi", "mistral"]
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt


class TinySource(Strict):
    tiny: TinyModel


class Template(Strict):
    name: Literal["chat", "llama2", "plain"]
    system: str | None = None
    date_string: str | None = None


class Model(Strict):
    base: TinySource | HubSource | LocalSource
    targets: dict[str, HubSource | LocalSource] = {}
    template: Template
    params_b: PositiveFloat = 0.001  # billions, for memory and time requests before the weights are seen
    trust_remote_code: bool = False
    printed: str | None = None  # what the papers call this model, where it is one of theirs


class Tiers(Strict):
    core: list[NonNegativeInt] = Field(min_length=1)
    full: list[NonNegativeInt] = Field(min_length=1)


class Roles(Strict):
    benchmarks: dict[str, list[str]]
    models: dict[str, list[str]]
    recipes: dict[str, str] = {}


class Evaluation(Strict):
    max_tokens: PositiveInt = 8192  # padded tokens in one batch
    max_new_tokens: PositiveInt = 200
    max_length: PositiveInt = 512
    bootstrap: PositiveInt = 1000
    dtype: Literal["float32", "bfloat16"] = "float32"


class Scale(Strict):
    name: str
    description: str
    settings: list[str]  # which `at:` entries of a recipe apply, later ones winning
    seeds: Tiers
    one_job_per_seed: bool
    minutes_per_billion: PositiveFloat
    world: WorldSource | None = None
    corpora: dict[str, Corpus]
    benchmarks: dict[str, Benchmark]
    models: dict[str, Model]
    roles: Roles
    evaluation: Evaluation

    @model_validator(mode="after")
    def _names_exist(self) -> "Scale":
        for name, model in self.models.items():
            _all_in(model.targets, self.corpora, f"models.{name}.targets")
        for name, benchmark in self.benchmarks.items():
            if benchmark.corpus not in self.corpora:
                raise ValueError(
                    f"benchmarks.{name}.corpus: no corpus '{benchmark.corpus}' (has: {', '.join(self.corpora)})"
                )
        for role, names in self.roles.benchmarks.items():
            _all_in(names, self.benchmarks, f"roles.benchmarks.{role}")
        for role, names in self.roles.models.items():
            _all_in(names, self.models, f"roles.models.{role}")
        tiny = [name for name, model in self.models.items() if isinstance(model.base, TinySource)]
        if tiny and self.world is None:
            raise ValueError(f"models.{tiny[0]} is tiny and takes the world's tokenizer, but there is no 'world'")
        return self


class StudyRuns(Strict):
    benchmarks: str
    models: str
    recipes: list[str] = Field(min_length=1)
    attacks: list[str] = ["none"]
    seeds: Literal["all", "first"] = "all"
    tier: Literal["core", "full"] = "core"


class Study(Strict):
    name: str
    title: str
    runs: list[StudyRuns] = Field(min_length=1)
    tables: list[str]
    figures: list[str]


class Config(Strict):
    """The keys of config/config.yaml: which part of the work to do."""

    scale: str
    study: str
    tier: Literal["core", "full"]
    source: Literal["computed", "summary", "shipped"] = "computed"
    corpus_dir: str | None = None  # replaces the folder of a scale's local corpora


# ---------------------------------------------------------------------------------------------- reading

T = TypeVar("T", bound=BaseModel)


def load_config(values: dict[str, Any]) -> Config:
    return validate(Config, values, paths.CONFIG)


def load_scale(name: str, root: str | Path = ".") -> Scale:
    """A scale file may name another in `extends`; its own keys win, lists and sources replace."""
    raw = _read_yaml(_existing(root, paths.scale_file(name), "scale", name))
    if parent := raw.pop("extends", None):
        raw = merge(_read_yaml(_existing(root, paths.scale_file(parent), "scale", parent)), raw)
    return validate(Scale, {"name": name, **raw}, paths.scale_file(name))


def load_study(name: str, root: str | Path = ".") -> Study:
    raw = _read_yaml(_existing(root, paths.study_file(name), "study", name))
    return validate(Study, {"name": name, **raw}, paths.study_file(name))


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
    raw = _read_yaml(path)
    for name, entry in raw.items():
        if not isinstance(entry, dict):
            raise LetheError(f"{path}: recipes.{name} must be a mapping, got {entry!r}")
    return raw


def resolve(
    recipes: dict[str, dict], name: str, settings: Iterable[str] = (), model: str = "", benchmark: str = ""
) -> Recipe:
    """The recipe `name` at these settings: its parent (`from`) resolved first, then its own values, then those under
    `at` for each setting (a scale's), and within it for the model, then the benchmark. The most specific wins."""
    if name not in recipes:
        raise LetheError(f"{paths.RECIPES}: no recipe '{name}' (has: {', '.join(recipes)})")
    return validate(
        Recipe,
        {"name": name, **_resolve(recipes, name, list(settings), model, benchmark)},
        f"{paths.RECIPES}: recipes.{name}",
    )


def _resolve(recipes: dict[str, dict], name: str, settings: list[str], model: str, benchmark: str) -> dict:
    entry = dict(recipes[name])
    at, parent = entry.pop("at", {}), entry.pop("from", None)
    if parent is not None and parent not in recipes:
        raise LetheError(f"{paths.RECIPES}: recipes.{name}.from: no recipe '{parent}' (has: {', '.join(recipes)})")
    value = merge(_resolve(recipes, parent, settings, model, benchmark) if parent else {}, entry)
    for setting in settings:
        special = dict(at.get(setting, {}))
        inner = {key: special.pop(key) for key in list(special) if key not in Recipe.model_fields}
        for override in (special, inner.get(model, {}), inner.get(benchmark, {})):
            value = merge(value, override)
    return value


def check_recipes(recipes: dict[str, dict], scales: Iterable[Scale]) -> None:
    """Every `at` key names a setting of some scale, and every key inside it a field, a model or a benchmark."""
    scales = list(scales)
    for name, entry in recipes.items():
        for setting, special in entry.get("at", {}).items():
            known = [scale for scale in scales if setting in scale.settings]
            names = {n for scale in known for n in (*scale.models, *scale.benchmarks)} | set(Recipe.model_fields)
            if not known:
                raise LetheError(f"{paths.RECIPES}: recipes.{name}.at.{setting}: no scale has this setting")
            for key in special:
                if key not in names:
                    raise LetheError(
                        f"{paths.RECIPES}: recipes.{name}.at.{setting}.{key}: no field, model or benchmark"
                    )


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


_KINDS = ("loss", "rule", "local", "hub", "world", "tiny")


def merge(base: Any, override: Any) -> Any:
    """Deep merge of mappings. A section that names another loss, stop rule or source replaces the old one whole."""
    if not (isinstance(base, dict) and isinstance(override, dict)):
        return override
    for kind in _KINDS:
        if kind not in override or not any(k in base for k in _KINDS):
            continue
        if kind not in base or (kind in ("loss", "rule") and base[kind] != override[kind]):
            return override
    return {**base, **{key: merge(base[key], value) if key in base else value for key, value in override.items()}}


def validate(kind: type[T], value: Any, where: str) -> T:
    """The model, or one line with the file, the key and what was found."""
    try:
        return kind.model_validate(value)
    except ValidationError as e:
        error = e.errors()[0]
        key = ".".join(str(part) for part in error["loc"])
        found = "" if isinstance(error["input"], dict) else f", got {error['input']!r}"
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message, found = "unknown key", ""
        raise LetheError(
            f"{where}{':' if ':' not in where else ''} {key}{': ' if key else ''}{message}{found}"
        ) from None


def canonical_json(value: BaseModel) -> str:
    return json.dumps(value.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def spec_sha256(value: BaseModel) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _read_yaml(path: str | Path) -> dict:
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LetheError(f"{path}: no such file") from None
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        raise LetheError(
            f"{path}{f' line {mark.line + 1}' if mark else ''}: not YAML ({getattr(e, 'problem', e)})"
        ) from None
    if not isinstance(raw, dict):
        raise LetheError(f"{path}: expected a mapping, got {type(raw).__name__}")
    return raw


def _existing(root: str | Path, file: str, kind: str, name: str) -> Path:
    path = Path(root) / file
    if not path.is_file():
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise LetheError(f"no {kind} '{name}': {file} does not exist (has: {', '.join(known)})")
    return path


def _all_in(names: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: unknown '{name}' (has: {', '.join(known)})")
