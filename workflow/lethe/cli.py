"""The command line: one command a stage, the same code that the workflow's rules call.

Bad input ends with one line on stderr and exit code 2. Heavy packages are imported by the stage that needs them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lethe import config, recipe, schema, warm
from lethe.errors import LetheError
from lethe.recipe import Margin


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if os.environ.get("LETHE_WARM") and os.environ.get("HF_HUB_OFFLINE"):
        return warm.call(argv)
    args = parser().parse_args(argv)
    # Noise of importing PEFT and bitsandbytes that a person can do nothing about.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
    try:
        args.stage(args)
    except LetheError as e:
        print(f"lethe: {e}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lethe", description="LLM unlearning: train, unlearn, attack, evaluate, report.")
    commands = top.add_subparsers(metavar="stage", required=True)

    def command(stage: Any, help: str) -> argparse.ArgumentParser:
        name = stage.__name__.replace("_", "-")
        sub = commands.add_parser(name, help=help, description=(stage.__doc__ or help).split("\n\n")[0])
        sub.set_defaults(stage=stage)
        return sub

    p = command(prepare, "write the data of a benchmark, a corpus or the embedded world as JSON Lines")
    p.add_argument("--kind", choices=["world", "library", "corpus", "benchmark"], required=True)
    p.add_argument("--spec", required=True, metavar="JSON", help="the entry of the scale file")
    p.add_argument("--out", type=Path, required=True)

    p = command(pretrain, "make a base model: train a small one from nothing, or fetch one")
    p.add_argument(
        "--source",
        required=True,
        metavar="JSON",
        help='{"tiny": {...}}, {"hub": ..., "revision": ...} or {"local": DIR}',
    )
    p.add_argument("--data", type=Path, help="folder with pretrain.jsonl and tokenizer/ (tiny models)")
    p.add_argument("--as-run", action="store_true", help="of a fetched model: weights/, run.json, trace.csv in --out")
    _recipe_options(p, "pretrain")
    p.add_argument("--seed", type=int, default=0)
    _model_options(p)
    _output_options(p)

    p = command(finetune, "fine-tune a model on rows")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB")
    p.add_argument("--train", type=Path, required=True, metavar="JSONL", help="rows {question, answer} or {text}")
    p.add_argument("--replay", type=Path, metavar="JSONL", help="rows of which some are mixed into every epoch")
    p.add_argument("--flat", action="store_true", help="put the weights into the run's folder itself")
    _recipe_options(p, "target")
    _seed_options(p)
    _model_options(p)
    _output_options(p)

    p = command(unlearn, "unlearn the rows of a file")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB", help="the model to start from")
    p.add_argument("--forget", type=Path, required=True, metavar="JSONL", help="rows {question, answer} or {text}")
    p.add_argument("--retain", type=Path, metavar="JSONL", help="rows whose answers should not change")
    _unlearning_options(p)
    _recipe_options(p, None)
    _seed_options(p)
    _model_options(p)
    _output_options(p)

    p = command(watch, "unlearn, only to measure on the way: one curve a seed, no weights")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB", help="the model to start from")
    p.add_argument("--forget", type=Path, required=True, metavar="JSONL", help="rows {question, answer}")
    p.add_argument("--retain", type=Path, required=True, metavar="JSONL", help="rows {question, answer}")
    _unlearning_options(p)
    p.add_argument("--every", type=int, default=2, help="steps between measurements")
    p.add_argument("--rows", type=int, default=50, help="how many rows of each file to measure on")
    p.add_argument("--past", type=int, required=True, help="where recipes with a stop rule end, in steps")
    p.add_argument("--max-new-tokens", type=int, default=200)
    p.add_argument("--margin", metavar="JSON", help="k, beta, rho: what counts as a violation; default: the recipe's")
    _recipe_options(p, None)
    p.add_argument("--seeds", type=int, nargs="+", default=[0], help="one curve each, s{seed}.csv below --out")
    _model_options(p)
    _output_options(p)

    p = command(evaluate, "score a model, or the runs of a recipe, on a benchmark, as they are or attacked")
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="DIR_OR_HUB")
    which.add_argument("--runs", type=Path, metavar="DIR", help="a folder of s{seed} runs")
    p.add_argument("--seeds", type=int, nargs="+", help="with --runs")
    p.add_argument(
        "--weights", metavar="PATTERN", help="with --runs: where the weights lie; default: RUNS/s{seed}/weights"
    )
    p.add_argument(
        "--benchmark", type=Path, required=True, metavar="DIR", help="prepared data, or a folder with forget.jsonl"
    )
    p.add_argument("--reference", type=Path, metavar="EVAL_JSON", help="evaluation of the retrained model")
    p.add_argument("--attack", nargs="+", default=["none"], metavar="ATTACK", help="none, bnb-nf4, rtn4, ...")
    p.add_argument("--options", default="{}", metavar="JSON", help="evaluation settings (see the scale files)")
    p.add_argument("--margin", metavar="JSON", help="k, beta, rho: report MASC's violation rate")
    _model_options(p)
    p.add_argument("--out", type=Path, help="with --model: the JSON file to write")
    p.add_argument("--work", type=Path, help="with --runs: where finished parts wait")

    p = command(attack, "write a model whose weights were quantised and dequantised")
    p.add_argument("--model", required=True, metavar="DIR_OR_HUB")
    p.add_argument("--attack", required=True)
    _model_options(p)
    p.add_argument("--out", type=Path, required=True)

    p = command(summarise, "gather runs and evaluations into a handful of tidy files")
    p.add_argument("--scale", required=True)
    p.add_argument("--study", nargs="+", required=True, help="the studies whose evaluations to gather")
    p.add_argument("--tier", choices=["core", "full"], default="core")
    p.add_argument("--out", type=Path, required=True)

    p = command(fit, "power laws of scores in model size")
    p.add_argument("--summary", type=Path, required=True)
    p.add_argument("--roles", required=True, metavar="JSON")
    p.add_argument("--out", type=Path, required=True)

    p = command(draw, "one table or figure of a study")
    p.add_argument("--study", required=True)
    p.add_argument("--kind", choices=["table", "figure"], required=True)
    p.add_argument("--id", required=True)
    p.add_argument("--summary", type=Path, required=True)
    p.add_argument("--fits", type=Path, required=True)
    p.add_argument("--reported", type=Path, required=True)
    p.add_argument("--roles", required=True, metavar="JSON")
    p.add_argument("--out", required=True, metavar="STEM")

    p = command(compare, "compare the tables of a reproduction with the accepted ones; informs, never fails")
    p.add_argument("ours", type=Path)
    p.add_argument("expected", type=Path)

    p = command(accept, "copy a scale's results to expected/, to be committed")
    p.add_argument("--scale", required=True)

    p = command(bench, "time what makes the stages fast, with and without")
    p.add_argument("--scale", required=True)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--out", type=Path, required=True)

    p = command(tune, "run the trials of the tuning protocol and write their log")
    p.add_argument("--benchmark", required=True, help="of scale tuning")
    p.add_argument("--trials", type=Path, default=Path("config/tuning.yaml"))
    p.add_argument("--recipes", nargs="+", metavar="NAME", help="only these now; the log has whatever was run")
    p.add_argument("--out", type=Path, help="default: config/tuning/BENCHMARK.csv")
    p.add_argument("--work", type=Path, help="default: work/tuning/trials/BENCHMARK")

    p = command(score_log, "recompute the aggregates of a published evaluation log (TOFU's or OpenUnlearning's)")
    p.add_argument("log", type=Path)
    p.add_argument("--retain", type=Path, metavar="LOG", help="the retrained model's log, for forget quality")
    p.add_argument("--truth-ratio", choices=["geo", "arith", "prob_mean"], default="geo")
    return top


def _recipe_options(p: argparse.ArgumentParser, default: str | None) -> None:
    p.add_argument(
        "--recipe",
        required=default is None,
        default=default,
        metavar="NAME_OR_JSON",
        help="an entry of config/recipes.yaml, or a whole recipe as JSON",
    )
    p.add_argument("--at", nargs="*", default=[], metavar="SETTING", help="`at:` entries of the recipe to apply")
    p.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="e.g. stop.alpha=0.4 optimizer.lr=1e-4")


def _unlearning_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--retrain", metavar="DIR", help="the retrained model, for recipes with stop.alpha: retrain")
    p.add_argument("--refusals", type=Path, metavar="JSONL", help="rows {text}, for recipes that teach refusals")
    p.add_argument("--like", type=Path, metavar="RUN", help="a run's folder, may hold {seed}: for recipes with `like`")


def _seed_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--seeds", type=int, nargs="+", help="one run each, into s{seed} below --out")


def _model_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--template", metavar="NAME_OR_JSON", help="chat, llama2 or plain; default: chat where the tokenizer has one"
    )
    p.add_argument("--revision", help="of a hub model")
    p.add_argument("--trust-remote-code", action="store_true")


def _output_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--work", type=Path, help="resume state; default: a hidden folder beside --out")


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


if __name__ == "__main__":
    sys.exit(main())
