"""Every path of the project, spelled once: rules and library both ask here.

A `run` is the string "{benchmark}/{model}/{recipe}"; paths are relative to the folder where the workflow runs, and any
argument may be a Snakemake wildcard such as "{run}".
"""

CONFIG = "config/config.yaml"
RECIPES = "config/recipes.yaml"


def scale_file(scale: str) -> str:
    return f"config/scales/{scale}.yaml"


def study_file(study: str) -> str:
    return f"config/studies/{study}.yaml"


def reported(study: str) -> str:
    return f"config/reported/{study}.csv"


def data(scale: str, name: str) -> str:
    """Prepared files of a benchmark, of a corpus, or of the embedded `world`."""
    return f"results/{scale}/data/{name}"


def base(scale: str, model: str) -> str:
    return f"results/{scale}/models/{model}/base"


def targets(scale: str, target: str) -> str:
    """The folder with one `s{seed}` for each target "{model}/{corpus}"."""
    return f"results/{scale}/models/{target}"


def target(scale: str, model: str, corpus: str, seed: int | str) -> str:
    return f"{targets(scale, f'{model}/{corpus}')}/s{seed}"


def runs(scale: str, run: str) -> str:
    """The folder with one `s{seed}` for each seed of a run."""
    return f"results/{scale}/runs/{run}"


def seed(scale: str, run: str, seed: int | str) -> str:
    return f"{runs(scale, run)}/s{seed}"


def evaluation(scale: str, run: str, seed: int | str, attack: str) -> str:
    return f"{runs(scale, run)}/s{seed}/eval/{attack}.json"


def items(evaluation_json: str) -> str:
    """The per-item values beside an evaluation."""
    return evaluation_json.removesuffix(".json") + ".items.parquet"


def curves(scale: str, run: str) -> str:
    """The folder with one s{seed}.csv for each watched seed of a run."""
    return f"results/{scale}/curves/{run}"


def curve(scale: str, run: str, seed: int | str) -> str:
    return f"{curves(scale, run)}/s{seed}.csv"


def summary(scale: str) -> str:
    return f"results/{scale}/summary"


def fits(scale: str) -> str:
    return f"results/{scale}/fits.csv"


def claims(scale: str) -> str:
    return f"results/{scale}/claims.csv"


def bench(scale: str) -> str:
    return f"results/{scale}/bench.csv"


def table(scale: str, study: str, name: str) -> str:
    return f"paper_tables/{scale}/{study}/{name}"


def figure(scale: str, study: str, name: str) -> str:
    return f"figures/{scale}/{study}/{name}"


def expected(scale: str) -> str:
    """What was computed and accepted, in git."""
    return f"expected/{scale}"


def caption(study: str, name: str) -> str:
    return f"workflow/report/{study}/{name}.rst"


def work(result: str) -> str:
    """Resume state of the result at this path: never an output of a rule, so that Snakemake never deletes it."""
    return "work/" + result.removeprefix("results/")


def log(scale: str, stage: str, name: str) -> str:
    return f"results/{scale}/logs/{stage}/{name}.log"
