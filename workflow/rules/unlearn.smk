# The runs: the retrained model and others that learn from the base, and the methods that unlearn from the target.


for seeds, runs in batches(FINETUNED).items():

    rule:
        name:
            f"finetune_{label(seeds)}"
        input:
            base=base_of,
            corpus=corpus_of,
            benchmark=benchmark_of,
        output:
            weights=[directory(f"{paths.seed(SCALE.name, '{run}', seed)}/weights") for seed in seeds],
            records=[f"{paths.seed(SCALE.name, '{run}', seed)}/run.json" for seed in seeds],
            traces=[f"{paths.seed(SCALE.name, '{run}', seed)}/trace.csv" for seed in seeds],
        log:
            paths.log(SCALE.name, "finetune", f"{{run}}_{label(seeds)}"),
        wildcard_constraints:
            run=any_of(runs),
        conda:
            "../../envs/compute.yaml"
        threads: 1
        resources:
            mem_mb=memory_mb,
            runtime=minutes_for(len(seeds)),
        params:
            recipe=recipe_json,
            template=template_json,
            rows=rows_options,
            seeds=seeds,
            out=paths.runs(SCALE.name, "{run}"),
            work=paths.work(paths.runs(SCALE.name, "{run}")),
            trust=trust_option,
            code=digest(*TRAINING_CODE),
        shell:
            "HF_HUB_OFFLINE=1 lethe finetune --model {input.base} {params.rows} --recipe {params.recipe:q}"
            " --template {params.template:q} {params.trust} --seeds {params.seeds} --out {params.out}"
            " --work {params.work} 2>&1 | tee {log}"


for seeds, runs in batches(UNLEARNED).items():

    rule:
        name:
            f"unlearn_{label(seeds)}"
        input:
            start=start_of(seeds),
            retrain=retrain_of,
            like=like_of(seeds),
            benchmark=benchmark_of,
        output:
            weights=[directory(f"{paths.seed(SCALE.name, '{run}', seed)}/weights") for seed in seeds],
            records=[f"{paths.seed(SCALE.name, '{run}', seed)}/run.json" for seed in seeds],
            traces=[f"{paths.seed(SCALE.name, '{run}', seed)}/trace.csv" for seed in seeds],
        log:
            paths.log(SCALE.name, "unlearn", f"{{run}}_{label(seeds)}"),
        wildcard_constraints:
            run=any_of(runs),
        conda:
            "../../envs/compute.yaml"
        threads: 1
        resources:
            mem_mb=memory_mb,
            runtime=minutes_for(len(seeds)),
        params:
            recipe=recipe_json,
            template=template_json,
            start=start_from,
            options=unlearning_options,
            seeds=seeds,
            out=paths.runs(SCALE.name, "{run}"),
            work=paths.work(paths.runs(SCALE.name, "{run}")),
            trust=trust_option,
            code=digest(*TRAINING_CODE),
        shell:
            "HF_HUB_OFFLINE=1 lethe unlearn --model {params.start} --forget {input.benchmark}/forget.jsonl"
            " --retain {input.benchmark}/retain.jsonl {params.options} --recipe {params.recipe:q}"
            " --template {params.template:q} {params.trust} --seeds {params.seeds} --out {params.out}"
            " --work {params.work} 2>&1 | tee {log}"


for (seeds, watch), runs in watch_batches().items():

    rule:
        name:
            f"watch_{label(seeds)}_{watch.every}_{watch.rows}_{watch.past}"
        input:
            start=start_of(seeds),
            retrain=retrain_of,
            benchmark=benchmark_of,
        output:
            curves=[paths.curve(SCALE.name, "{run}", seed) for seed in seeds],
        log:
            paths.log(SCALE.name, "watch", f"{{run}}_{label(seeds)}"),
        wildcard_constraints:
            run=any_of(runs),
        conda:
            "../../envs/compute.yaml"
        threads: 1
        resources:
            mem_mb=memory_mb,
            runtime=minutes_for(4 * len(seeds)),
        params:
            recipe=recipe_json,
            template=template_json,
            margin=margin_json,
            start=start_from,
            options=unlearning_options,
            watch=watch_options(watch),
            max_new_tokens=SCALE.evaluation.max_new_tokens,
            seeds=seeds,
            out=paths.curves(SCALE.name, "{run}"),
            work=paths.work(paths.curves(SCALE.name, "{run}")),
            trust=trust_option,
            code=digest(*WATCHING_CODE),
        shell:
            "HF_HUB_OFFLINE=1 lethe watch --model {params.start} --forget {input.benchmark}/forget.jsonl"
            " --retain {input.benchmark}/retain.jsonl {params.options} --recipe {params.recipe:q}"
            " --template {params.template:q} --margin {params.margin:q} {params.watch}"
            " --max-new-tokens {params.max_new_tokens} {params.trust} --seeds {params.seeds} --out {params.out}"
            " --work {params.work} 2>&1 | tee {log}"
