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
            start=start_of,
            retrain=retrain_of,
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
            retrain=lambda wildcards, input: f"--retrain {input.retrain}" if input.retrain else "",
            seeds=seeds,
            out=paths.runs(SCALE.name, "{run}"),
            work=paths.work(paths.runs(SCALE.name, "{run}")),
            trust=trust_option,
            code=digest(*TRAINING_CODE),
        shell:
            "HF_HUB_OFFLINE=1 lethe unlearn --model {input.start} --forget {input.benchmark}/forget.jsonl"
            " --retain {input.benchmark}/retain.jsonl {params.retrain} --recipe {params.recipe:q}"
            " --template {params.template:q} {params.trust} --seeds {params.seeds} --out {params.out}"
            " --work {params.work} 2>&1 | tee {log}"
