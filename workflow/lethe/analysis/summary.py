"""The summary: the one door between compute and paper. Read, checked and averaged over seeds, without torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.errors import LetheError
from lethe.files import read_json, read_jsonl, sha256_file

RUN_KEY = ["benchmark", "model", "recipe", "seed"]
METRIC_KEY = [*RUN_KEY, "attack", "metric"]
METRICS = [*METRIC_KEY, "n_params", "value", "n", "lo", "hi", "reason"]
RUNS = [
    *RUN_KEY, "n_params", "start_sha256", "weights_sha256", "steps", "stop_rule", "stop_reason", "wall_s", "cpu_s",
    "steps_cpu_s", "probes_cpu_s", "forget_tokens", "retain_tokens", "flops", "peak_rss_mb", "peak_cuda_mb",
    "effective_batch", "dtype", "device", "threads", "spec_sha256", "versions",
]  # fmt: skip
CURVES = [
    *RUN_KEY, "step", "forget_tokens", "retain_tokens", "steps_cpu_s", "steps_wall_s", "violation_rate", "forget_prob",
    "forget_rouge", "forget_value_recall", "retain_rouge", "retain_prob", "rows",
]  # fmt: skip


@dataclass(frozen=True)
class Roles:
    """What the roles of a study stand for at one scale.

    `benchmarks` lists the benchmarks of each role and `headline` the one that panels show; `main` is the model of the
    tables and `models_of` that of benchmarks whose tables show another one, `ladder` the sizes of the scaling study
    from small to large, `learning` the recipe whose runs are its learning stage. `printed_models` names the paper's
    model that a model of this scale is, where it is one.
    """

    scale: str
    benchmarks: Mapping[str, tuple[str, ...]]
    headline: Mapping[str, str]
    main: str
    models_of: Mapping[str, str]
    ladder: tuple[str, ...]
    learning: str
    suites: Mapping[str, str]
    printed_models: Mapping[str, str]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Roles":
        """From {scale, benchmarks, models: {main, of, ladder, printed}, headline, learning, suites}, where models.of,
        models.printed, learning and suites may be absent."""
        for key in ("scale", "benchmarks", "models", "headline"):
            if key not in value:
                raise LetheError(f"roles: no key '{key}' (has: {', '.join(value)})")
        models = value["models"]
        if not isinstance(models.get("main"), str):
            raise LetheError(f"roles: models.main must be one model's name, got {models.get('main')!r}")
        return cls(
            scale=value["scale"],
            benchmarks={suite: tuple(names) for suite, names in value["benchmarks"].items()},
            headline=dict(value["headline"]),
            main=models["main"],
            models_of=dict(models.get("of", {})),
            ladder=tuple(models.get("ladder", ())),
            learning=value.get("learning", "target"),
            suites=dict(value.get("suites", {})),
            printed_models=dict(models.get("printed", {})),
        )

    def suite(self, benchmark: str) -> str:
        """The evaluation suite of a benchmark: declared, or its name up to the first '-'."""
        return self.suites.get(benchmark, benchmark.split("-")[0])

    def main_of(self, benchmark: str) -> str:
        """The model that tables and figures show of a benchmark."""
        return self.models_of.get(benchmark, self.main)


@dataclass(frozen=True)
class Summary:
    """metrics.csv and runs.csv as data frames; traces and samples are read when asked for."""

    folder: Path
    metrics: pd.DataFrame
    runs: pd.DataFrame

    def select(self, **where: Any) -> pd.DataFrame:
        """Rows of metrics.csv whose columns equal the given values, or lie in the given lists."""
        keep = pd.Series(True, index=self.metrics.index)
        for column, wanted in where.items():
            wanted = [wanted] if isinstance(wanted, str | int) else list(wanted)
            keep &= self.metrics[column].isin(wanted)
        return self.metrics[keep]

    def times(self) -> pd.DataFrame:
        """Seconds of each run, as timed inside its stage: `time_cpu_s` and `time_wall_s`.

        Both hold optimiser steps, probes, and the reference quantities of the start model that some losses need (where
        runs.csv counts these apart, in reference_cpu_s). What a method does not do costs it nothing.
        """
        times = self.runs[RUN_KEY].copy()
        extra = [c for c in ("probes_cpu_s", "reference_cpu_s") if c in self.runs]
        times["time_cpu_s"] = self.runs["steps_cpu_s"] + self.runs[extra].fillna(0.0).sum(axis=1)
        times["time_wall_s"] = self.runs["wall_s"]
        return times

    def time_kind(self) -> str:
        """The clock by which these runs are compared: CPU seconds on CPUs, wall-clock seconds once a GPU took part."""
        devices = self.runs["device"].dropna().astype(str)
        return "time_cpu_s" if devices.str.startswith("cpu").all() else "time_wall_s"

    def sizes(self, kind: str = "total") -> pd.DataFrame:
        """model, size: the parameters of every model, `total` or `nonembed` (without embeddings; may be absent)."""
        frame, column = (self.metrics, "n_params") if kind == "total" else (self.runs, "n_params_nonembed")
        if column not in frame:
            return pd.DataFrame({"model": [], "size": []})
        sizes = frame[["model", column]].dropna().drop_duplicates().rename(columns={column: "size"})
        if twice := sizes.loc[sizes["model"].duplicated(), "model"].tolist():
            raise LetheError(f"{self.folder}: model {twice[0]} has more than one {column}")
        return sizes

    def traces(self) -> pd.DataFrame:
        """One row an optimiser step: the run's key and the columns of its trace.csv."""
        return read_csv(self.folder / "traces.csv.gz", [*RUN_KEY, "step"])

    def curves(self) -> pd.DataFrame:
        """One row a watched step (CURVES); no rows where the study watches nothing."""
        path = self.folder / "curves.csv.gz"
        return read_csv(path, CURVES) if path.exists() else pd.DataFrame(columns=CURVES)

    def samples(self) -> list[dict]:
        return read_jsonl(self.folder / "samples.jsonl")


def load_summary(folder: str | Path) -> Summary:
    """Read and check a summary folder: sha256 against its manifest, columns, keys, numbers.

    The manifest lies in the folder, or beside it (the accepted results ship one for all their files).
    """
    folder = Path(folder)
    check_manifest(folder)
    metrics = read_csv(folder / "metrics.csv", METRICS, METRIC_KEY)
    runs = read_csv(folder / "runs.csv", RUNS, RUN_KEY)
    for column in ("n_params", "value", "n", "lo", "hi"):
        metrics[column] = _numbers(metrics, column, folder / "metrics.csv")
    for column in ("n_params", "n_params_nonembed", "wall_s", "steps_cpu_s", "probes_cpu_s", "reference_cpu_s"):
        if column in runs:
            runs[column] = _numbers(runs, column, folder / "runs.csv")
    bare = metrics[metrics["value"].isna() & metrics["reason"].isna()]
    if len(bare):
        raise LetheError(f"{folder / 'metrics.csv'}: neither value nor reason for {_key(bare, METRIC_KEY)}")
    ran = set(runs[RUN_KEY].itertuples(index=False, name=None))
    if lost := sorted(set(metrics[RUN_KEY].itertuples(index=False, name=None)) - ran):
        raise LetheError(f"{folder / 'runs.csv'}: no row for {'/'.join(map(str, lost[0]))}")
    return Summary(folder, metrics, runs)


def check_manifest(folder: Path) -> None:
    """Every file of the folder that a manifest lists has the sha256 it states; metrics.csv and runs.csv are listed."""
    manifest = next((m for m in (folder / "manifest.json", folder.parent / "manifest.json") if m.is_file()), None)
    if manifest is None:
        raise LetheError(f"{folder / 'manifest.json'}: no such file")
    listed = {manifest.parent / name: entry for name, entry in read_json(manifest).get("files", {}).items()}
    for file in (folder / "metrics.csv", folder / "runs.csv"):
        if file not in listed:
            raise LetheError(f"{manifest}: does not list {file.name}")
    for file, entry in listed.items():
        if file.parent != folder:
            continue
        if not file.is_file():
            raise LetheError(f"{file}: no such file, though {manifest} lists it")
        if (found := sha256_file(file)) != entry["sha256"]:
            raise LetheError(f"{file}: sha256 must be {entry['sha256'][:12]}... as in {manifest}, got {found[:12]}...")


def read_csv(path: str | Path, columns: Iterable[str], key: list[str] | None = None) -> pd.DataFrame:
    """A CSV that must have `columns` and, where `key` is given, one row a key. Only an empty cell is "no value"."""
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    except FileNotFoundError:
        raise LetheError(f"{path}: no such file") from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as e:
        raise LetheError(f"{path}: not a CSV table ({e})") from None
    if missing := [c for c in columns if c not in frame.columns]:
        raise LetheError(f"{path}: no column '{missing[0]}' (has: {', '.join(frame.columns)})")
    if key is not None and len(twice := frame[frame.duplicated(key)]):
        raise LetheError(f"{path}: two rows for {_key(twice, key)}")
    return frame


def over_seeds(wide: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Mean and sample standard deviation (ddof = 1) over seeds, groups in order of appearance.

    wide: the columns `by`, `seed`, and one column a score. Returns `by`, {score}_mean and {score}_std, n_seeds.
    NaN scores are left out; a deviation of fewer than two is NaN.
    """
    scores = [c for c in wide.columns if c not in (*by, "seed")]
    groups = wide.groupby(by, sort=False)
    parts = {}
    for score in scores:
        parts[f"{score}_mean"] = groups[score].mean()
        parts[f"{score}_std"] = groups[score].std(ddof=1)
    return pd.DataFrame({**parts, "n_seeds": groups["seed"].nunique()}).reset_index()


def _numbers(frame: pd.DataFrame, column: str, path: Path) -> pd.Series:
    numbers = pd.to_numeric(frame[column], errors="coerce")
    wrong = frame[column].notna() & ~numbers.map(math.isfinite)
    if wrong.any():
        raise LetheError(f"{path}: {column} must be a finite number or empty, got '{frame.loc[wrong, column].iloc[0]}'")
    return numbers


def _key(rows: pd.DataFrame, key: list[str]) -> str:
    return "/".join(str(v) for v in rows[key].iloc[0])
