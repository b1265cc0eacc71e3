"""What a reproduction consists of: scales and studies, read from YAML and checked before any work.

A scale maps the roles of a study to models, data and seeds; a study lists the runs a paper needs in terms of roles.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from lethe import paths
from lethe.errors import LetheError
from lethe.recipe import Chunks, Recipe
from lethe.schema import Strict, merge, read_yaml, validate


class HubSource(Strict):
    hub: str
    revision: str


class LocalSource(Strict):
    local: str


class WorldSeed(Strict):
    seed: int
    rounds: PositiveInt = 16  # times that pretraining reads every famous fact


class WorldSource(Strict):
    world: WorldSeed


class LibraryStyle(Strict):
    seed: int
    style: Literal["news", "books"]


class LibrarySource(Strict):
    library: LibraryStyle


class Subset(Strict):
    forget: str
    retain: str


class Excerpts(Strict):
    """What is cut out of plain text files: how many, and how many words each."""

    count: PositiveInt = 100
    prompt: PositiveInt = 650
    continuation: PositiveInt = 80
    member: PositiveInt = 1000


class Corpus(Strict):
    family: Literal["tofu", "muse"] = "tofu"
    source: WorldSource | LibrarySource | LocalSource | HubSource
    subset: Subset | None = None  # family tofu: only these two splits
    excerpts: Excerpts | None = None  # family muse, plain text files


class Benchmark(Strict):
    """A forget set of a corpus and how it is evaluated. reference: the benchmark whose retrained model this one is
    compared with; null: it has its own. start_from: the benchmark whose unlearned models are unlearned further."""

    corpus: str
    suite: Literal["tofu", "muse"]
    forget: str
    reference: str | None = None
    start_from: str | None = None


class TinyModel(Strict):
    """A randomly initialised model; `tokenizer: world` is the one trained on the embedded world."""

    architecture: Literal["qwen2", "llama", "phi", "mistral"]
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt


class TinySource(Strict):
    tiny: TinyModel
    reads: Literal["world", "library"] = "world"  # what it is pretrained on


class Template(Strict):
    name: Literal["chat", "llama2", "plain"]
    system: str | None = None
    date_string: str | None = None


class Model(Strict):
    base: TinySource | HubSource | LocalSource
    targets: dict[str, HubSource | LocalSource] = Field(default_factory=dict)
    retrained: dict[str, HubSource | LocalSource] = Field(default_factory=dict)  # by benchmark
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
    recipes: dict[str, list[str]] = Field(default_factory=dict)


class Evaluation(Strict):
    max_tokens: PositiveInt = 8192  # padded tokens in one batch
    max_new_tokens: PositiveInt = 200
    max_length: PositiveInt = 512
    bootstrap: PositiveInt = 1000
    chunks: Chunks = Chunks(window=512)  # in which forget texts are scored
    verbatim_tokens: PositiveInt = 128  # muse: of a continuation, both what is generated and what is compared
    knowledge_tokens: PositiveInt = 32  # muse: of an answer
    published_auc: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(default_factory=dict)  # of min-k, a benchmark
    limit: PositiveInt | None = None  # only the first so many rows of each file
    dtype: Literal["float32", "bfloat16"] = "float32"


class Scale(Strict):
    name: str
    description: str
    settings: list[str]  # which `at:` entries of a recipe apply, later ones winning
    seeds: Tiers
    one_job_per_seed: bool
    warm: bool  # many short jobs on one machine: fork them from a process that has imported everything (lethe/warm.py)
    minutes_per_billion: PositiveFloat
    world: WorldSource | None = None
    library: WorldSource | None = None
    corpora: dict[str, Corpus]
    benchmarks: dict[str, Benchmark]
    models: dict[str, Model]
    roles: Roles
    evaluation: Evaluation

    @model_validator(mode="after")
    def _names_exist(self) -> "Scale":
        for name, model in self.models.items():
            _all_in(model.targets, self.corpora, f"models.{name}.targets")
            _all_in(model.retrained, self.benchmarks, f"models.{name}.retrained")
        for name, benchmark in self.benchmarks.items():
            if benchmark.corpus not in self.corpora:
                raise ValueError(
                    f"benchmarks.{name}.corpus: no corpus '{benchmark.corpus}' (has: {', '.join(self.corpora)})"
                )
            for key in ("reference", "start_from"):
                if (other := getattr(benchmark, key)) is not None:
                    _all_in([other], self.benchmarks, f"benchmarks.{name}.{key}")
        for role, names in self.roles.benchmarks.items():
            _all_in(names, self.benchmarks, f"roles.benchmarks.{role}")
        for role, names in self.roles.models.items():
            _all_in(names, self.models, f"roles.models.{role}")
        for name, model in self.models.items():
            if isinstance(model.base, TinySource) and getattr(self, model.base.reads) is None:
                reads = model.base.reads
                raise ValueError(f"models.{name} is tiny and learns the {reads}'s language, but there is no '{reads}'")
        return self


class StudyRuns(Strict):
    """Recipes on roles of benchmarks and models. `headline`: only the first benchmark of its role. `seeds: first`: only
    the first seed of the tier."""

    benchmarks: str
    models: str
    recipes: list[str] = Field(min_length=1)
    attacks: list[str] = Field(default_factory=lambda: ["none"])
    headline: bool = False
    seeds: Literal["all", "first"] = "all"
    tier: Literal["core", "full"] = "core"


class Watch(Strict):
    """Measure every so many steps, on the first `rows` forget and retain rows. A recipe with a stop rule goes on to
    `past` steps, so that one sees what stopping prevented."""

    every: PositiveInt
    rows: PositiveInt
    past: PositiveInt


class StudyCurves(Strict):
    """Recipes that are trained once more, watched; they are not timed, saved or evaluated."""

    benchmarks: str
    models: str
    recipes: list[str] = Field(min_length=1)
    watch: Watch
    headline: bool = True
    seeds: Literal["all", "first"] = "all"
    tier: Literal["core", "full"] = "core"


class Study(Strict):
    name: str
    title: str
    recipes: dict[str, list[str]] = Field(default_factory=dict)  # roles of recipes; a scale's roles.recipes win
    runs: list[StudyRuns] = Field(min_length=1)
    curves: list[StudyCurves] = Field(default_factory=list)
    tables: list[str]
    figures: list[str]
    needs: dict[str, list[str]] = Field(default_factory=dict)  # role of models: artefacts that have nothing without it

    def artefacts(self, scale: Scale) -> list[tuple[str, str]]:
        """(kind, id) of what can be made at this scale: a role may stand for no model."""
        without = {id for role, ids in self.needs.items() if not scale.roles.models.get(role) for id in ids}
        every = [*(("table", id) for id in self.tables), *(("figure", id) for id in self.figures)]
        return [(kind, id) for kind, id in every if id not in without]


class Config(Strict):
    """The keys of config/config.yaml: which part of the work to do."""

    scale: str
    study: str
    tier: Literal["core", "full"]
    source: Literal["computed", "summary", "shipped"] = "computed"
    corpus_dir: str | None = None  # replaces the folder of a scale's local corpora


def load_config(values: dict[str, Any]) -> Config:
    return validate(Config, values, paths.CONFIG)


def load_scale(name: str, root: str | Path = ".") -> Scale:
    """A scale file may name another in `extends`; its own keys win, lists and sources replace."""
    return validate(Scale, {"name": name, **_read_scale(name, root)}, paths.scale_file(name))


def _read_scale(name: str, root: str | Path) -> dict[str, Any]:
    raw = read_yaml(_existing(root, paths.scale_file(name), "scale", name))
    parent = raw.pop("extends", None)
    return merge(_read_scale(parent, root), raw) if parent else raw


def load_study(name: str, root: str | Path = ".") -> Study:
    raw = read_yaml(_existing(root, paths.study_file(name), "study", name))
    return validate(Study, {"name": name, **raw}, paths.study_file(name))


def check_recipes(recipes: dict[str, dict], scales: Iterable[Scale]) -> None:
    """Every `at` key names a setting of some scale, and every key inside it a field, a model, a corpus or a
    benchmark."""
    scales = list(scales)
    for name, entry in recipes.items():
        for setting, special in entry.get("at", {}).items():
            known = [scale for scale in scales if setting in scale.settings]
            places = {n for scale in known for n in (*scale.models, *scale.corpora, *scale.benchmarks)}
            names = places | set(Recipe.model_fields)
            if not known:
                raise LetheError(f"{paths.RECIPES}: recipes.{name}.at.{setting}: no scale has this setting")
            for key in special:
                if key not in names:
                    raise LetheError(
                        f"{paths.RECIPES}: recipes.{name}.at.{setting}.{key}: no field, model, corpus or benchmark"
                    )


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
