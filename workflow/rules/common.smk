"""What all rules share: the configuration, checked before any job, and the helpers that rules call.

A `run` is "benchmark/model/recipe", a `target` is "model/corpus".
"""

import functools
import hashlib
import json
import os
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

import lethe
from lethe import config as settings
from lethe import paths
from lethe import recipe as recipes
from lethe.analysis.share import compute_share
from lethe.config import LocalSource, TinySource
from lethe.errors import LetheError
from lethe.models.codebooks import check_attack
from lethe.plan import REFERENCE_SEED, paper_roles, plan, plan_curves, recipe_of, reference_of, run_folder, weights
from lethe.schema import canonical_json

# Snakemake sets OMP_NUM_THREADS to a job's threads; threads that spin while they wait would slow the other jobs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


# ------------------------------------------------------------------------------------- what is to be made, checked


def load_scale(name, corpus_dir=None):
    """The scale; its local corpora are read from corpus_dir where that is set."""
    scale = settings.load_scale(name)
    if corpus_dir is None:
        return scale
    moved = {
        name: corpus.model_copy(update={"source": LocalSource(local=corpus_dir)})
        for name, corpus in scale.corpora.items()
        if isinstance(corpus.source, LocalSource)
    }
    if not moved:
        raise LetheError(f"{paths.CONFIG}: corpus_dir is set, but scale '{scale.name}' has no local corpus")
    return scale.model_copy(update={"corpora": scale.corpora | moved})


def check_folders(scale):
    """Local corpora and models exist; hub names are checked by the job that downloads them."""
    sources = {f"corpora.{name}.source": corpus.source for name, corpus in scale.corpora.items()}
    for name, model in scale.models.items():
        sources[f"models.{name}.base"] = model.base
        sources |= {f"models.{name}.targets.{corpus}": source for corpus, source in model.targets.items()}
    for key, source in sources.items():
        if isinstance(source, LocalSource) and not Path(source.local).is_dir():
            raise LetheError(f"{paths.scale_file(scale.name)}: {key}.local: no folder '{source.local}'")


def check_summary(folder):
    """A summary that this run does not make is there, and its files are what the manifest says."""
    from lethe.analysis.summary import check_manifest

    check_manifest(Path(folder))


try:
    CONFIG = settings.load_config(config)
    SCALE = load_scale(CONFIG.scale, CONFIG.corpus_dir)
    STUDY = settings.load_study(CONFIG.study)
    RECIPES = recipes.load_recipes(paths.RECIPES)
    settings.check_recipes(RECIPES, [settings.load_scale(file.stem) for file in Path().glob(paths.scale_file("*"))])
    CELLS = plan(STUDY, SCALE, CONFIG.tier)
    CURVES = plan_curves(STUDY, SCALE, CONFIG.tier)
    RECIPE = {run: recipe_of(RECIPES, SCALE, run) for run in dict.fromkeys(c.run for c in [*CELLS, *CURVES])}
    COMPUTED, SHIPPED = CONFIG.source == "computed", CONFIG.source == "shipped"
    SUMMARY = f"{paths.expected(SCALE.name)}/summary" if SHIPPED else paths.summary(SCALE.name)
    if COMPUTED:
        check_folders(SCALE)
        for cell in CELLS:
            check_attack(cell.attack)
    else:
        check_summary(SUMMARY)
except LetheError as e:
    sys.exit(f"lethe: {e}")

STARTED = time.time()

if SCALE.warm:
    os.environ.setdefault("LETHE_WARM", "1")  # offline stages are forked from a process that has imported everything

OUT = f"{SCALE.name}-shipped" if SHIPPED else SCALE.name  # so that neither overwrites the other
SUMMARY_FILES = [
    f"{SUMMARY}/{name}" for name in ("metrics.csv", "runs.csv", "traces.csv.gz", "curves.csv.gz", "samples.jsonl")
]
SUMMARY_MANIFEST = f"{paths.expected(SCALE.name) if SHIPPED else SUMMARY}/manifest.json"
ROLES = json.dumps(paper_roles(STUDY, SCALE))
ARTEFACTS = [
    (
        (kind, id, paths.table(OUT, STUDY.name, id), "csv", ("md", "tex"))
        if kind == "table"
        else (kind, id, paths.figure(OUT, STUDY.name, id), "png", ("pdf", "csv", "md"))
    )
    for kind, id in STUDY.artefacts(SCALE)
]


# ------------------------------------------------------------------------------------ which runs, and in which jobs


def is_reference(cell):
    """The evaluation that every other one of its benchmark and model is compared with."""
    return (cell.recipe, cell.seed, cell.attack) == ("retrain", REFERENCE_SEED, "none")


def seeds_by_run():
    seeds = defaultdict(set)
    for cell in CELLS:
        seeds[cell.run].add(cell.seed)
    return {run: sorted(found) for run, found in seeds.items()}


def seeds_by_target():
    """Targets that are evaluated, and the one that unlearning starts from."""
    seeds = defaultdict(set)
    for cell in CELLS:
        if cell.recipe == "target" or RECIPE[cell.run].unlearns:
            target = f"{cell.model}/{SCALE.benchmarks[cell.benchmark].corpus}"
            seeds[target].add(cell.seed if cell.recipe == "target" else REFERENCE_SEED)
    return {target: sorted(found) for target, found in seeds.items()}


def jobs_of(seeds):
    """One job for all seeds or, at a scale of large models, one for each."""
    return [(seed,) for seed in seeds] if SCALE.one_job_per_seed else [tuple(seeds)]


def batches(seeds_by_name):
    """{seeds of a job: names}: the jobs of a rule have the same seeds and differ in the name."""
    found = defaultdict(list)
    for name, seeds in seeds_by_name.items():
        for job in jobs_of(seeds):
            found[job].append(name)
    return found


def evaluation_batches():
    """{(seeds, attacks) of a job: runs}: a job evaluates what forms a block of seeds x attacks of a run."""
    seeds = defaultdict(list)
    for cell in CELLS:
        if not is_reference(cell):
            seeds[cell.run, cell.attack].append(cell.seed)
    attacks = defaultdict(list)
    for (run, attack), numbers in seeds.items():
        for job in jobs_of(numbers):
            attacks[run, job].append(attack)
    found = defaultdict(list)
    order = [cell.attack for cell in CELLS]
    for (run, job), names in attacks.items():
        found[job, tuple(sorted(names, key=order.index))].append(run)
    return found


def watch_batches():
    """{(seeds of a job, what is measured): runs}"""
    seeds = defaultdict(list)
    for curve in CURVES:
        seeds[curve.run, curve.watch].append(curve.seed)
    found = defaultdict(list)
    for (run, watch), numbers in seeds.items():
        for job in jobs_of(sorted(numbers)):
            found[job, watch].append(run)
    return found


def label(seeds, attacks=()):
    """A batch in the name of its rule: s0_1_2."""
    return re.sub(r"\W", "_", "_".join(["s" + "_".join(map(str, seeds)), *attacks]))


def any_of(names):
    """A wildcard constraint: one of these names, and nothing where there are none."""
    return "|".join(map(re.escape, names)) or "(?!)"


RUNS = seeds_by_run()
REFERENCES = [cell.run for cell in CELLS if is_reference(cell)]
RETRAINED = [f"{benchmark}/{name}/retrain" for name, model in SCALE.models.items() for benchmark in model.retrained]
FINETUNED = {
    run: seeds
    for run, seeds in RUNS.items()
    if RECIPE[run].method == "finetune" and RECIPE[run].name != "target" and run not in RETRAINED
}
UNLEARNED = {run: seeds for run, seeds in RUNS.items() if RECIPE[run].unlearns}
GIVEN = [f"{name}/{corpus}" for name, model in SCALE.models.items() for corpus in model.targets]
TARGETS = {target: seeds for target, seeds in seeds_by_target().items() if target not in GIVEN}
LANGUAGES = {name: source for name in ("world", "library") if (source := getattr(SCALE, name)) is not None}
TINY = [name for name, model in SCALE.models.items() if isinstance(model.base, TinySource)]


# --------------------------------------------------------------------------------------------- what code a job runs


@functools.cache
def digest(*parts):
    """sha256 of modules below workflow/lethe, a folder standing for all in it. Snakemake does not track imports."""
    root = Path(lethe.__file__).parent
    content = hashlib.sha256()
    for part in parts:
        for file in [root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py")):
            content.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return content.hexdigest()


DATA_CODE = (
    "data/prepare.py",
    "data/tofu.py",
    "data/world.py",
    "data/vocabulary.py",
    "data/muse.py",
    "data/library.py",
    "data/phrases.py",
    "models/tiny.py",
)
FETCHING_CODE = ("models/base.py", "models/load.py")
ATTACKING_CODE = ("models/quantise.py", "models/codebooks.py")
TRAINING_CODE = ("unlearn", "optim", "data/rows.py", "data/text.py", "models/load.py", *ATTACKING_CODE)
WATCHING_CODE = (*TRAINING_CODE, "metrics/scores.py", "metrics/generation.py", "metrics/rouge.py")
PRETRAINING_CODE = (*TRAINING_CODE, "models/base.py", "models/tiny.py")
SCORING_CODE = ("metrics", "unlearn/losses.py", "unlearn/margin.py", "data/rows.py", "data/text.py", "models/load.py")
SUMMARY_CODE = ("analysis/summarise.py", "analysis/summary.py")
FIT_CODE = ("analysis/powerlaw.py", "analysis/summary.py")
PAPER_CODE = ("paper", "analysis/pareto.py", "analysis/powerlaw.py", "analysis/summary.py", "metrics/stats.py")


# ----------------------------------------------------------------------------- what a job reads (of its wildcards)


def place_of(wildcards):
    """(benchmark, model, corpus) of a job; no benchmark where it makes what several share."""
    if hasattr(wildcards, "run"):
        benchmark, model, _ = wildcards.run.split("/")
        return benchmark, model, SCALE.benchmarks[benchmark].corpus
    model, _, corpus = (wildcards.target if hasattr(wildcards, "target") else wildcards.model).partition("/")
    return None, model, corpus


def model_of(wildcards):
    """The scale's entry for the job's model."""
    return SCALE.models[place_of(wildcards)[1]]


def base_of(wildcards):
    return paths.base(SCALE.name, place_of(wildcards)[1])


def benchmark_of(wildcards):
    return paths.data(SCALE.name, place_of(wildcards)[0])


def corpus_of(wildcards):
    return paths.data(SCALE.name, place_of(wildcards)[2])


def start_from(wildcards):
    """What unlearning starts from: the target, whatever the run's own seed, or where the benchmark starts from another,
    that one's run of the same recipe and {seed}."""
    benchmark, model, corpus = place_of(wildcards)
    if (before := SCALE.benchmarks[benchmark].start_from) is not None:
        return weights(SCALE, f"{before}/{model}/{RECIPE[wildcards.run].name}", "{seed}")
    return paths.target(SCALE.name, model, corpus, REFERENCE_SEED)


def start_of(seeds):
    """The models that a job's runs start from, as an input function."""
    return lambda wildcards: list(dict.fromkeys(start_from(wildcards).replace("{seed}", str(seed)) for seed in seeds))


def sibling(wildcards, recipe):
    """The run of another recipe on the same benchmark and model."""
    return f"{wildcards.run.rpartition('/')[0]}/{recipe}"


def retrained(wildcards):
    """The run that retrained the model which this one is compared with."""
    benchmark, model, _ = place_of(wildcards)
    return f"{reference_of(SCALE, benchmark)}/{model}/retrain"


def retrain_of(wildcards):
    """The retrained model, where the recipe's stop rule is calibrated by it."""
    return [weights(SCALE, retrained(wildcards), REFERENCE_SEED)] if RECIPE[wildcards.run].needs_retrain else []


def like_of(seeds):
    """The runs that a recipe refers to, seed by seed, as an input function."""
    return lambda wildcards: [
        f"{paths.seed(SCALE.name, sibling(wildcards, RECIPE[wildcards.run].like), seed)}/{part}"
        for seed in seeds
        for part in ("weights", "run.json")
        if RECIPE[wildcards.run].like
    ]


def weights_of(seeds):
    """The models that an evaluation loads, as an input function."""
    return lambda wildcards: [weights(SCALE, wildcards.run, seed) for seed in seeds]


def reference_scores(wildcards):
    return paths.evaluation(SCALE.name, retrained(wildcards), REFERENCE_SEED, "none")


def summary_inputs():
    """Every evaluation, and every run's records; those of models that runs start from lie in the models' folders."""
    shared = {run for run in RUNS if RECIPE[run].name in ("base", "target")}
    folders = {run: [run_folder(SCALE, run, seed) for seed in seeds] for run, seeds in RUNS.items()}
    return {
        "evaluations": [paths.evaluation(SCALE.name, cell.run, cell.seed, cell.attack) for cell in CELLS],
        "models": [folder for run in shared for folder in folders[run]],
        "records": [f"{folder}/run.json" for run in RUNS if run not in shared for folder in folders[run]],
        "traces": [f"{folder}/trace.csv" for run in RUNS if run not in shared for folder in folders[run]],
        "curves": [paths.curve(SCALE.name, curve.run, curve.seed) for curve in CURVES],
    }


# ----------------------------------------------------------------------- what a job is told (all that changes a result)


def recipe_json(wildcards):
    """The resolved recipe of a run: all of recipes.yaml that its result depends on."""
    return canonical_json(RECIPE[wildcards.run])


def model_recipe(name):
    """The resolved recipe of a model that several benchmarks share, as a function of wildcards."""
    return lambda wildcards: canonical_json(shared_recipe(name, wildcards))


def shared_recipe(name, wildcards):
    _, model, corpus = place_of(wildcards)
    return recipes.resolve(RECIPES, name, SCALE.settings, model=model, corpus=corpus)


def rows_options(wildcards):
    """What `lethe finetune` trains on."""
    recipe = RECIPE[wildcards.run] if hasattr(wildcards, "run") else shared_recipe("target", wildcards)
    corpus = corpus_of(wildcards)
    rows = f"{corpus}/full.jsonl" if recipe.data == "full" else f"{benchmark_of(wildcards)}/retrain.jsonl"
    return f"--train {rows}" + (f" --replay {corpus}/replay.jsonl" if recipe.replay else "")


def unlearning_options(wildcards):
    """What some recipes of `lethe unlearn` read besides the forget and retain rows."""
    recipe, options = RECIPE[wildcards.run], []
    for folder in retrain_of(wildcards):
        options.append(f"--retrain {folder}")
    if recipe.needs_refusals:
        options.append(f"--refusals {benchmark_of(wildcards)}/idk.jsonl")
    if recipe.like:
        options.append(f"--like {paths.seed(SCALE.name, sibling(wildcards, recipe.like), '{seed}')}")
    return " ".join(options)


def template_json(wildcards):
    return canonical_json(model_of(wildcards).template)


def margin_json(wildcards):
    """What counts as a violation, for every recipe alike: MASC's setting for this benchmark and model."""
    return canonical_json(recipe_of(RECIPES, SCALE, sibling(wildcards, "masc")).margin)


def source_json(wildcards):
    """Where a model comes from."""
    model, (benchmark, _, corpus) = model_of(wildcards), place_of(wildcards)
    if benchmark is not None:
        return canonical_json(model.retrained[benchmark])
    return canonical_json(model.targets[corpus] if corpus else model.base)


def language_of(wildcards):
    """What a tiny model is pretrained on."""
    return paths.data(SCALE.name, model_of(wildcards).base.reads)


def benchmark_json(wildcards):
    """A benchmark's entry, with its corpus's in place of the name."""
    benchmark = SCALE.benchmarks[wildcards.benchmark]
    return json.dumps(benchmark.model_dump() | {"corpus": SCALE.corpora[benchmark.corpus].model_dump()})


def trust_option(wildcards):
    return "--trust-remote-code" if model_of(wildcards).trust_remote_code else ""


def watch_options(watch):
    return f"--every {watch.every} --rows {watch.rows} --past {watch.past}"


def summary_folder(wildcards):
    return SUMMARY


def stem_of(wildcards, output):
    """A table or figure without its suffix."""
    return os.path.splitext(output.shown)[0]


def report_entry(kind, id):
    """Where the HTML report shows an artefact, with a caption where there is one."""
    written = Path(paths.caption(STUDY.name, id)).is_file()
    caption = f"../report/{STUDY.name}/{id}.rst" if written else None
    return {"category": STUDY.title, "subcategory": kind.capitalize() + "s", "caption": caption, "labels": {"id": id}}


# --------------------------------------------------------------------------------------------------- what a job needs


def memory_mb(wildcards, attempt):
    """Of the host: float32 weights, gradients and Adam's two moments (16 bytes a parameter) can all be paged to it."""
    return attempt * round(2000 + 16_000 * model_of(wildcards).params_b)


def minutes_for(parts):
    """Of a job with so many runs or evaluations, as a function of the model's size."""
    return lambda wildcards, attempt: attempt * round(
        10 + parts * SCALE.minutes_per_billion * model_of(wildcards).params_b
    )


# ---------------------------------------------------------------------------------------------------- when all is done


def say_compute_share():
    """One line for whoever waited: how long it took, and how much of that was the stages' own work."""
    if COMPUTED:
        print(f"lethe: {compute_share(Path('results') / SCALE.name, STARTED, workflow.cores)}")
