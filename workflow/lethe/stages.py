"""What each command does: options checked and put into the stage's own terms, then the stage.

Heavy packages are imported by the stage that needs them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from lethe import config, recipe, schema
from lethe.errors import LetheError
from lethe.recipe import Margin


def prepare(args: argparse.Namespace) -> None:
    """Write the data of a benchmark, a corpus or the embedded world as JSON Lines with a manifest."""
    from lethe.data import prepare as data

    stages = {
        "world": data.prepare_world,
        "library": data.prepare_library,
        "corpus": data.prepare_corpus,
        "benchmark": data.prepare_benchmark,
    }
    stages[args.kind](_json(args.spec, "--spec"), args.out)


def pretrain(args: argparse.Namespace) -> None:
    """Make a base model: train a small one from nothing, or fetch one from the hub or a folder."""
    source = schema.validate(
        config.Model, {"base": _json(args.source, "--source"), "template": {"name": "chat"}}, "--source"
    ).base
    from lethe.models import base

    if not isinstance(source, config.TinySource):
        options = {"flat": not args.as_run, "trust_remote_code": args.trust_remote_code}
        base.fetch(source, args.out, _work(args), **options)
        return
    if args.data is None:
        raise LetheError("--data is needed to train a small model")
    template = _template(args)
    assert template is not None or args.template is None
    from lethe.data.text import get_template

    base.pretrain(source, _recipe(args), args.data, template or get_template("chat"), args.out, _work(args), args.seed)


def finetune(args: argparse.Namespace) -> None:
    """Fine-tune a model on rows {question, answer} or {text}."""
    _train(args, retain=args.train, replay=args.replay, flat=args.flat)


def unlearn(args: argparse.Namespace) -> None:
    """Unlearn the rows of a file with a recipe; the result is a plain Hugging Face model folder and run.json."""
    _train(args, **_unlearning_files(args))


def watch(args: argparse.Namespace) -> None:
    """Unlearn, only to measure on the way: violation rate, probability and ROUGE by step, one CSV a seed."""
    recipe = _recipe(args)
    margin = schema.validate(Margin, _json(args.margin, "--margin"), "--margin") if args.margin else recipe.margin
    if margin is None:
        raise LetheError(f"recipe {recipe.name}: has no margin of its own; --margin must say k, beta and rho")
    sources = _sources(args, **_unlearning_files(args))
    from lethe.metrics.scores import MarginSpec
    from lethe.unlearn.watch import WatchOptions, watch_seeds

    options = WatchOptions(
        every=args.every,
        rows=args.rows,
        past=args.past,
        max_new_tokens=args.max_new_tokens,
        margin=MarginSpec(margin.k, margin.beta, margin.rho),
    )
    watch_seeds(recipe, sources, args.seeds, options, args.out, _work(args))


def _unlearning_files(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("forget", "retain", "retrain", "refusals", "like")}


def _train(args: argparse.Namespace, flat: bool = False, **files: Any) -> None:
    recipe = _recipe(args)
    sources = _sources(args, **files)
    from lethe.unlearn import run

    if args.seeds:
        run.train_seeds(recipe, sources, args.seeds, args.out, _work(args), flat=flat)
    else:
        run.train_single(recipe, sources, args.seed, args.out, _work(args), flat=flat)


def _sources(args: argparse.Namespace, **files: Any) -> Any:
    for name, path in files.items():
        if isinstance(path, Path) and name != "like" and not path.is_file():
            raise LetheError(f"{path}: no such file")
    from lethe.unlearn.training import Sources

    return Sources(
        start=args.model,
        template=_template(args),
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        **files,
    )


def evaluate(args: argparse.Namespace) -> None:
    """Score a model, or the runs of a recipe, on a benchmark, as they are or attacked."""
    from lethe.models.quantise import check_attack

    for name in args.attack:
        check_attack(name)
    options = schema.validate(config.Evaluation, _json(args.options, "--options"), "--options")
    margin = schema.validate(recipe.Margin, _json(args.margin, "--margin"), "--margin") if args.margin else None
    from lethe.metrics import evaluate as stage

    if args.runs:
        if not args.seeds:
            raise LetheError("--runs needs --seeds")
        stage.evaluate_runs(
            args.weights or f"{args.runs}/s{{seed}}/weights",
            args.seeds,
            args.attack,
            args.benchmark,
            f"{args.runs}/s{{seed}}/eval/{{attack}}.json",
            args.work or args.runs.with_name(f".{args.runs.name}.work"),
            reference=args.reference,
            options=options,
            margin=margin,
            template=_template(args),
        )
    else:
        if args.out is None or len(args.attack) != 1:
            raise LetheError("--model needs --out and a single --attack")
        stage.evaluate_model(
            args.model,
            args.attack[0],
            args.benchmark,
            args.out,
            reference=args.reference,
            options=options,
            margin=margin,
            template=_template(args),
            revision=args.revision,
            trust_remote_code=args.trust_remote_code,
        )


def attack(args: argparse.Namespace) -> None:
    """Write a model whose weights were quantised and dequantised, in Hugging Face format."""
    from lethe.models.quantise import check_attack

    check_attack(args.attack)
    from lethe.metrics import evaluate as stage

    stage.attack_model(
        args.model, args.attack, args.out, revision=args.revision, trust_remote_code=args.trust_remote_code
    )


def summarise(args: argparse.Namespace) -> None:
    """Gather runs and evaluations into a handful of tidy files: all that tables and figures read."""
    from lethe.analysis.summarise import write_summary
    from lethe.plan import plan, plan_curves

    scale = config.load_scale(args.scale)
    studies = [config.load_study(name) for name in args.study]
    cells = dict.fromkeys(cell for study in studies for cell in plan(study, scale, args.tier))
    curves = dict.fromkeys(curve for study in studies for curve in plan_curves(study, scale, args.tier))
    write_summary(scale, list(cells), list(curves), args.out)


def fit(args: argparse.Namespace) -> None:
    """Fit power laws of scores in model size."""
    from lethe.analysis.powerlaw import write_fits

    write_fits(args.summary, _json(args.roles, "--roles"), args.out)


def draw(args: argparse.Namespace) -> None:
    """Write one table (csv, md, tex) or figure (pdf, png, csv) of a study."""
    from lethe.paper.render import render

    render(
        args.study, args.kind, args.id, args.summary, _json(args.roles, "--roles"), args.reported, args.fits, args.out
    )


def compare(args: argparse.Namespace) -> None:
    """Compare the tables of a reproduction with the accepted ones; informs, never fails."""
    from lethe.analysis.compare import compare_tables

    differences = compare_tables(args.ours, args.expected)
    for difference in differences:
        print(difference)
    outside = f"{len(differences)} outside the tolerances" if differences else "all within the tolerances"
    print(f"{args.ours} against {args.expected}: {outside} (times are not compared)")


def accept(args: argparse.Namespace) -> None:
    """Copy a scale's summary, tables and figures to expected/, to be committed as the accepted results."""
    from lethe.analysis.accept import accept

    accept(args.scale)


def bench(args: argparse.Namespace) -> None:
    """Time what makes the stages fast, with and without, on a finished scale; write bench.csv."""
    scale = config.load_scale(args.scale)
    from lethe import bench

    bench.write_bench(scale, args.out, args.repeats)


def tune(args: argparse.Namespace) -> None:
    """Run the trials of config/tuning.yaml in the world of scale tuning (snakemake --config scale=tuning study=tuning
    comes first), and write their log."""
    from lethe.tune import tune

    out, work = Path(f"config/tuning/{args.benchmark}.csv"), Path(f"work/tuning/trials/{args.benchmark}")
    tune(args.benchmark, args.trials, args.out or out, args.work or work, args.recipes)


def score_log(args: argparse.Namespace) -> None:
    """Recompute the aggregates of a published evaluation log from its per-item values; prints one JSON object."""
    from lethe.interop.score_log import score_log

    print(json.dumps(score_log(args.log, args.retain, args.truth_ratio), indent=1))


def _recipe(args: argparse.Namespace) -> recipe.Recipe:
    if args.recipe.lstrip().startswith("{"):
        raw, where = _json(args.recipe, "--recipe"), "--recipe"
    else:
        recipes = recipe.load_recipes()
        raw = recipe.resolve(recipes, args.recipe, args.at).model_dump(mode="json")
        where = f"recipe {args.recipe}"
    return schema.validate(recipe.Recipe, recipe.set_values(raw, args.set), where)


def _template(args: argparse.Namespace) -> Any:
    if args.template is None:
        return None
    from lethe.data.text import get_template

    return get_template(
        **(_json(args.template, "--template") if args.template.startswith("{") else {"name": args.template})
    )


def _work(args: argparse.Namespace) -> Path:
    return args.work or args.out.with_name(f".{args.out.name}.work")


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise LetheError(f"{option}: not JSON ({e.msg}), got {text[:80]!r}") from None
