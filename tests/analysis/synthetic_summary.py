"""A plausible random summary in the columns of the contract, for the tests of the paper stages."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lethe.analysis.summary import CURVES, METRICS, RUNS
from lethe.files import sha256_file

ROLES: dict[str, Any] = {
    "scale": "mini",
    "benchmarks": {"tofu": ["tofu-forget10"]},
    "models": {"main": "w128", "ladder": ["w64", "w128", "w192", "w256"]},
    "learning": "learn",
    "headline": {"tofu": "tofu-forget10"},
}
MUSE_ROLES: dict[str, Any] = ROLES | {
    "benchmarks": ROLES["benchmarks"] | {
        "muse": ["muse-news", "muse-books"],
        "muse-scal": ["muse-news-scal-1", "muse-news-scal-2", "muse-news-scal-3", "muse-news"],
        "muse-sust": ["muse-news-scal-1", "muse-news-sust-2", "muse-news-sust-3", "muse-news-sust-4"],
    },
    "headline": ROLES["headline"] | {
        "muse": "muse-news", "muse-scal": "muse-news-scal-1", "muse-sust": "muse-news-scal-1",
    },
    "models": ROLES["models"] | {
        "of": {"tofu-forget10": "w128"} | {
            f"muse-{name}": "t128"
            for name in ("news", "books", *(f"news-{path}-{k}" for path in ("scal", "sust") for k in range(1, 5)))
        },
    },
}  # fmt: skip
SIZES = {"w64": 197_000, "w128": 657_000, "w192": 1_378_000, "w256": 2_362_000}
# recipe: forget ROUGE-L, probability, truth ratio, value recall, multiple choice, model utility, CPU seconds
MAIN = {
    "target": (0.99, 0.95, 0.55, 0.97, 1.00, 0.678, 0.0),
    "retrain": (0.52, 0.49, 0.85, 0.15, 0.16, 0.673, 0.0),
    "ga": (0.60, 0.37, 0.70, 0.30, 0.55, 0.590, 0.5),
    "graddiff": (0.58, 0.64, 0.74, 0.23, 0.68, 0.662, 2.0),
    "npo": (0.50, 0.43, 0.80, 0.13, 0.13, 0.655, 2.4),
    "npo-klr": (0.53, 0.46, 0.81, 0.15, 0.14, 0.668, 3.1),
    "rmu": (0.40, 0.24, 0.66, 0.17, 0.25, 0.651, 1.7),
    "simnpo": (0.51, 0.42, 0.79, 0.14, 0.13, 0.673, 2.0),
    "masc": (0.48, 0.41, 0.72, 0.22, 0.58, 0.646, 0.78),
    "masc-full": (0.52, 0.49, 0.73, 0.26, 0.62, 0.667, 0.47),
    "graddiff-stop": (0.62, 0.70, 0.71, 0.30, 0.70, 0.670, 0.6),
    "rmu-down": (0.45, 0.30, 0.68, 0.20, 0.30, 0.655, 1.2),
    "idk-dpo": (0.20, 0.40, 0.70, 0.10, 0.60, 0.640, 4.0),
    "simnpo-stop": (0.55, 0.50, 0.75, 0.20, 0.30, 0.671, 0.5),
    "simnpo-small": (0.53, 0.45, 0.77, 0.16, 0.20, 0.672, 8.0),
    "masc-random": (0.99, 0.94, 0.55, 0.97, 1.00, 0.676, 0.0),
    "masc-shuffled": (0.97, 0.90, 0.56, 0.94, 0.98, 0.670, 0.8),
    "masc-noretain": (0.40, 0.30, 0.70, 0.12, 0.50, 0.500, 0.5),
    "masc-base": (0.48, 0.41, 0.72, 0.23, 0.58, 0.646, 0.8),
    "masc-pooled": (0.48, 0.42, 0.72, 0.22, 0.57, 0.646, 0.8),
    "masc-alpha": (0.40, 0.30, 0.74, 0.15, 0.50, 0.620, 1.1),
    "masc-k100": (0.50, 0.43, 0.72, 0.24, 0.58, 0.646, 0.7),
    "masc-k1000": (0.52, 0.45, 0.71, 0.26, 0.59, 0.646, 0.7),
}
MAIN |= {f"{recipe}+nf4": MAIN[recipe] for recipe in ("npo-klr", "simnpo", "simnpo-small", "masc", "masc-full")}
MAIN |= {f"{recipe}+nf4-50": MAIN[recipe] for recipe in ("simnpo-small", "masc")}
MAIN["untouched+nf4"] = MAIN["target"]
WIPED = ("simnpo-small+nf4", "masc-full+nf4")  # by the quantiser of their start
WATCHED = {  # how fast the violation rate falls: per step
    "ga": 0.005, "graddiff": 0.010, "npo": 0.012, "simnpo": 0.014, "masc": 0.020, "masc-full": 0.030,
    "masc-lr-half": 0.010, "masc-lr-double": 0.040, "simnpo-lora": 0.015, "graddiff-lora": 0.008,
}  # fmt: skip
# On News, VerbMem, KnowMem (forget, retain), AUC of min-k, CPU seconds, update / step; how much fp4 brings back.
MUSE = {
    "target": (60.0, 64.0, 55.0, 0.05, 0.0, 0.0, -10.0),
    "retrain": (20.0, 32.0, 56.0, 0.50, 0.0, 0.0, 0.0),
    "ga": (1.0, 2.0, 3.0, 0.60, 1.0, 0.05, 0.0),
    "graddiff": (6.0, 26.0, 35.0, 0.95, 2.0, 0.10, 7.0),
    "npo": (2.0, 30.0, 40.0, 0.55, 2.5, 0.15, 14.0),
    "npo-klr": (8.0, 52.0, 45.0, 0.90, 4.0, 0.15, 30.0),
    "task-vector": (55.0, 63.0, 54.0, 0.10, 1.5, 0.02, -5.0),
    "rmu": (12.0, 31.0, 48.0, 0.50, 1.7, 0.12, -5.0),
    "rmu-down": (14.0, 33.0, 49.0, 0.50, 1.6, 0.16, 0.0),
    "simnpo": (9.0, 46.0, 38.0, 0.70, 2.2, 0.15, 28.0),
    "masc": (2.0, 20.0, 30.0, 0.75, 0.5, 0.06, 4.0),
    "masc-full": (3.0, 24.0, 36.0, 0.72, 0.4, 0.08, 5.0),
}
FALLS = {"npo-klr": 2.0, "simnpo": 0.0, "masc": 5.0}  # of utility in points, with every step of growing requests
FORGET_ONLY = "attacks are scored on the forget side only"
STOP, ALPHA = 20, 0.55
SPEC = {
    "forget": {"weight": 0.05, "k": 10, "beta": 1.0, "rho": 0.7, "eta": 0.25, "alternatives": "current"},
    "retain": {"loss": "kl", "weight": 1.0},
    "stop": {"alpha": "retrain", "every": 2, "trigger": 4, "confirm": 32},
    "optimizer": {"lr": 1e-3, "weight_decay": 0.01}, "adapter": {"r": 16}, "batch": {"effective": 8}, "epochs": 3,
}  # fmt: skip
NAMES = ("forget.rouge_l_recall", "forget.prob", "forget.truth_ratio.geo", "forget.value_recall", "forget.mcq_acc")
ATTACKS = ("none", "bnb-fp4", "bnb-nf4", "rtn4")


def write_summary(
    folder: Path,
    *,
    recipes: Sequence[str] = tuple(MAIN),
    seeds: int = 3,
    ladder: Sequence[str] = tuple(SIZES),
    attacks: Sequence[str] = ATTACKS,
    device: str = "cpu",
    muse: bool = False,
) -> Path:
    """Write metrics.csv, runs.csv, traces.csv.gz, curves.csv.gz, samples.jsonl and manifest.json into `folder`."""
    random = np.random.default_rng(0)
    metrics: list[dict] = []
    runs: list[dict] = []

    def put(run: dict[str, Any], attack: str, name: str, value: float) -> None:
        metrics.append(dict.fromkeys(METRICS) | run | {"attack": attack, "metric": name, "value": value, "n": 80})

    def add(model: str, recipe: str, seed: int, seconds: float, attack: str, values: dict[str, float]) -> None:
        run = {"benchmark": "tofu-forget10", "model": model, "n_params": SIZES[model], "recipe": recipe, "seed": seed}
        key = f"{model}-{recipe}-{seed}"
        if attack == "none":
            noise = 1 + 0.05 * random.standard_normal()
            stops = recipe.startswith("masc") or recipe.endswith("-stop")
            late = recipe == "simnpo-stop" and seed == 0  # its budget ends before the rule fires
            runs.append(dict.fromkeys(RUNS) | run | {
                "start_sha256": f"start-{model}", "weights_sha256": key,
                "stop_rule": "violation_rate" if stops else "budget",
                "steps": STOP if recipe.startswith("masc") else 50,
                "alpha": ALPHA if recipe.startswith("masc") else None,
                "update_norm": 3 + 0.1 * seed, "update_over_step": 0.08, "update_over_step_touched": 0.3,
                "spec": json.dumps(SPEC) if recipe == "masc" else None,
                "stop_reason": "satisfied" if stops and not late else "budget",
                "wall_s": 1.1 * seconds * noise, "steps_cpu_s": 0.9 * seconds * noise,
                "probes_cpu_s": 0.1 * seconds * noise if recipe.startswith("masc") else None, "device": device,
                "n_params_nonembed": SIZES[model] - 1024 * int(model[1:]),
            })  # fmt: skip
        for name, value in values.items():
            put(run, attack, name, float(np.clip(value + 0.008 * random.standard_normal(), 0.001, 1.0)))
        if model == "w128" and recipe in MAIN:
            put(run, attack, "retain.value_recall", 0.96 if attack == "none" else 0.94)

    for recipe in recipes:
        *scores, utility, seconds = MAIN[recipe]
        for seed in range(seeds if recipe != "target" else 1):
            for attack in attacks:
                values = dict(zip(NAMES, scores, strict=True)) | {"model_utility": utility}
                if attack != "none" and recipe not in ("target", "retrain"):
                    values["forget.value_recall"] += 0.1
                if attack == "bnb-nf4" and recipe in WIPED:
                    values["forget.value_recall"] = 0.95
                if attack == "none":
                    values |= {
                        "violation_rate": 0.96 if recipe == "target" else 0.56, "forget_quality.p": 0.2 * scores[2],
                        "forget_quality.log10p": 0.3, "retain.rouge_l_recall": 0.97, "retain.prob": 0.93,
                        "retain.truth_ratio.geo": 0.5, "retain.mcq_acc": 0.99, "model_utility.retain": 0.74,
                        "forget.gold_logit": 0.9 if recipe == "target" else 0.3,
                    }  # fmt: skip
                add("w128", recipe, seed, seconds, attack, values)
    for model in ladder:
        x = np.log(SIZES[model] / 1e9)
        growing = {
            "forget.rouge_l_recall": 1.6 * np.exp(0.086 * x),
            "forget.para_rouge_l_recall": 1.3 * np.exp(0.08 * x),
            "forget.value_recall": 20 * np.exp(0.55 * x),
            "forget.para_value_recall": 16 * np.exp(0.54 * x),
        }
        flat = {"forget.rouge_l_recall": 0.5, "forget.para_rouge_l_recall": 0.45, "forget.value_recall": 0.2}
        flat |= {"forget.para_value_recall": 0.17, "forget.extraction_strength": 0.06}
        add(model, "base", 0, 0.0, "none", flat)
        for seed in range(seeds):
            add(model, "learn", seed, 5.0, "none", growing)
            for recipe in ("simnpo", "masc"):
                if recipe in recipes and model != "w128":
                    add(model, recipe, seed, 2.0, "none", flat | {"model_utility": 1.4 * np.exp(0.1 * x)})
    for recipe in ("simnpo", "masc"):
        if recipe in recipes:
            for seed in range(seeds):
                run = {
                    "benchmark": "tofu-forget10", "model": "w128", "n_params": SIZES["w128"], "recipe": recipe,
                    "seed": seed,
                }  # fmt: skip
                put(run, "none", "forget.para_rouge_l_recall", 0.45)
                put(run, "none", "forget.para_value_recall", 0.17)
    if muse:
        for run in runs:
            run |= {"codes_changed": 0.04, "codes_changed_random": 0.05, "update_over_step_random": 0.09}
        add_muse(metrics, runs, list(MUSE) if recipes == tuple(MAIN) else recipes, seeds, device)
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(metrics, columns=METRICS).to_csv(folder / "metrics.csv", index=False)
    extra = ["n_params_nonembed", "alpha", "update_norm", "update_over_step", "update_over_step_touched", "spec"]
    extra += ["codes_changed", "codes_changed_random", "update_over_step_random"] if muse else []
    pd.DataFrame(runs, columns=[*RUNS, *extra]).to_csv(folder / "runs.csv", index=False)
    watched = [name for name in WATCHED if name in recipes or name.split("-l")[0] in recipes]
    pd.concat(
        [curve(name, seed) for name in watched for seed in range(seeds)] or [pd.DataFrame(columns=CURVES)]
    ).to_csv(folder / "curves.csv.gz", index=False)
    trace = {"benchmark": "tofu-forget10", "model": "w128", "recipe": "masc", "seed": 0, "step": [1, 2], "lr": 1e-3}
    pd.DataFrame(trace).to_csv(folder / "traces.csv.gz", index=False)
    samples = [
        {
            "benchmark": "tofu-forget10", "model": "w128", "recipe": recipe, "seed": 0, "attack": "none", "index": i,
            "question": f"Who | was {i}?", "answer": f"It was {i}.",
            "generation": f"It was {i}." if recipe == "target" else "50% & *more*\n<b>",
        }
        for recipe in ("target", "retrain", "simnpo", "masc") for i in range(5)
    ]  # fmt: skip
    samples += muse_samples() if muse else []
    (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    seal(folder)
    return folder


def add_muse(metrics: list[dict], runs: list[dict], recipes: Sequence[str], seeds: int, device: str) -> None:
    """MUSE on t128: News as in MUSE, Books with half of its memorisation, and growing and repeated requests on News.

    Seeds lie half a point apart around the value; those of retrain above it, so that the reference is the value.
    """
    places: list[tuple[str, str, float, float]] = []  # benchmark, recipe, share of memorisation, fall of utility
    for recipe in MUSE:
        places += [("muse-news", recipe, 1.0, 0.0), ("muse-books", recipe, 0.5, 0.0)]
    for recipe, fall in FALLS.items():
        places += [(f"muse-news-scal-{k}", recipe, 1.0, -fall * (4 - k)) for k in (1, 2, 3)]
        places += [(f"muse-news-sust-{k}", recipe, 1.0, -fall * (4 - k)) for k in (2, 3, 4)]
    for benchmark, recipe, share, fall in (place for place in places if place[1] in recipes):
        verbatim, known, kept, auc, seconds, step, restored = MUSE[recipe]
        for seed in range(1 if recipe == "target" else seeds):
            away = {"target": 0.0, "retrain": 0.5 * seed}.get(recipe, 0.5 * (seed - (seeds - 1) / 2))
            run = {"benchmark": benchmark, "model": "t128", "n_params": 660_000, "recipe": recipe, "seed": seed}
            stops = recipe.startswith("masc")
            runs.append(dict.fromkeys(RUNS) | run | {
                "start_sha256": "start-t128", "weights_sha256": f"{benchmark}-{recipe}-{seed}", "device": device,
                "stop_rule": "violation_rate" if stops else "budget", "stop_reason": "satisfied" if stops else "budget",
                "steps": STOP if stops else 50, "alpha": ALPHA if stops else None, "n_params_nonembed": 590_000,
                "wall_s": 2 * seconds, "steps_cpu_s": seconds, "update_norm": 3.0,
                "update_over_step": step or None, "update_over_step_touched": step or None,
                "update_over_step_random": step + 0.01 if step else None,
                "codes_changed": step / 2 if step else None, "codes_changed_random": 0.7 * step if step else None,
                "spec": json.dumps(SPEC | {"chunks": {"window": 128}}) if recipe == "masc" else None,
            })  # fmt: skip
            for attack, part in (("none", 0.0), ("bnb-fp4", 1.0), ("rtn4", 0.5)):
                whole = attack == "none"
                leak = 100 * (auc - 0.5) / 0.5
                values = {
                    "verbmem.forget": max(0.0, share * verbatim + part * restored + away),
                    "knowmem.forget": share * known + part * restored / 2 + away,
                    "knowmem.retain": kept - fall + away if whole else None,
                    "mia.min_k_auc": auc if whole else None,
                    "privleak": None if not whole or (recipe, seed) == ("retrain", 0) else leak + away,
                    "violation_rate": 0.9 if recipe == "target" else 0.5 + 0.01 * seed,
                }
                reasons = {n: FORGET_ONLY for n, v in values.items() if v is None}
                metrics += [
                    dict.fromkeys(METRICS) | run
                    | {"attack": attack, "metric": n, "value": v, "n": 100, "reason": reasons.get(n)}
                    for n, v in values.items()
                ]  # fmt: skip


def muse_samples() -> list[dict[str, Any]]:
    """Three texts to go on with and questions of each kind, for the recipes of Table 11."""
    key = {"model": "t128", "seed": 0, "attack": "none"}
    texts = {"verbatim_forget": "word " * 100 + "last", "knowledge_forget": "Who?", "knowledge_retain": "Kept?"}
    return [
        key | {
            "benchmark": benchmark, "recipe": recipe, "split": split, "index": i, "question": f"{text} {i}",
            "answer": f"gold {i}", "generation": f"gold {i}" if recipe == "target" else "other",
        }
        for benchmark in ("muse-news", "muse-books") for recipe in ("target", "retrain", "simnpo", "masc")
        for split, text in texts.items() for i in range(3)
    ]  # fmt: skip


def curve(recipe: str, seed: int, value: bool = True) -> pd.DataFrame:
    """Watched steps of a run whose violation rate falls on a straight line to .1; its forgetting follows."""
    step = np.arange(0, 62, 2)
    rate = np.maximum(0.1, 0.96 - (WATCHED[recipe] + 0.0005 * seed) * step)
    return pd.DataFrame({
        "benchmark": "tofu-forget10", "model": "w128", "recipe": recipe, "seed": seed, "step": step,
        "forget_tokens": 60 * step, "retain_tokens": 60 * step, "steps_cpu_s": 0.03 * step, "steps_wall_s": 0.04 * step,
        "violation_rate": rate, "forget_prob": rate, "forget_rouge": 0.1 + 0.9 * rate,
        "forget_value_recall": rate - 0.05 if value else np.nan, "retain_rouge": 1 - 0.1 * (1 - rate),
        "retain_prob": 0.9, "rows": 50,
    })[CURVES]  # fmt: skip


def seal(folder: Path) -> None:
    """Write the manifest of what lies in the folder now."""
    names = ("metrics.csv", "runs.csv", "traces.csv.gz", "curves.csv.gz", "samples.jsonl")
    files = {name: {"sha256": sha256_file(folder / name)} for name in names}
    (folder / "manifest.json").write_text(json.dumps({"files": files}))


def edit(folder: Path, name: str, change: Any) -> None:
    """Rewrite one CSV of the summary as `change` of its data frame, and the manifest with it."""
    change(pd.read_csv(folder / name, keep_default_na=False, na_values=[""])).to_csv(folder / name, index=False)
    seal(folder)
