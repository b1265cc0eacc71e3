# Scores of every run, as it is and attacked, and the summary of them all.


rule evaluate_reference:
    input:
        weights=weights_of([REFERENCE_SEED]),
        benchmark=benchmark_of,
    output:
        scores=paths.evaluation(SCALE.name, "{run}", REFERENCE_SEED, "none"),
        details=paths.items(paths.evaluation(SCALE.name, "{run}", REFERENCE_SEED, "none")),
    log:
        paths.log(SCALE.name, "evaluate", "{run}_reference"),
    wildcard_constraints:
        run=any_of(REFERENCES),
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb,
        runtime=minutes_for(1),
    params:
        options=canonical_json(SCALE.evaluation),
        margin=margin_json,
        template=template_json,
        runs=paths.runs(SCALE.name, "{run}"),
        work=f"{paths.work(paths.runs(SCALE.name, '{run}'))}/eval_reference",
        seed=REFERENCE_SEED,
        code=digest(*SCORING_CODE, *ATTACKING_CODE),
    shell:
        "HF_HUB_OFFLINE=1 lethe evaluate --runs {params.runs} --seeds {params.seed} --benchmark {input.benchmark}"
        " --options {params.options:q} --margin {params.margin:q} --template {params.template:q}"
        " --work {params.work} 2>&1 | tee {log}"


for (seeds, attacks), runs in evaluation_batches().items():

    rule:
        name:
            f"evaluate_{label(seeds, attacks)}"
        input:
            weights=weights_of(seeds),
            benchmark=benchmark_of,
            reference=reference_scores,
            reference_items=lambda wildcards: paths.items(reference_scores(wildcards)),
        output:
            scores=[paths.evaluation(SCALE.name, "{run}", seed, attack) for seed in seeds for attack in attacks],
            details=[
                paths.items(paths.evaluation(SCALE.name, "{run}", seed, attack))
                for seed in seeds
                for attack in attacks
            ],
        log:
            paths.log(SCALE.name, "evaluate", f"{{run}}_{label(seeds, attacks)}"),
        wildcard_constraints:
            run=any_of(runs),
        conda:
            "../../envs/compute.yaml"
        threads: 1
        resources:
            mem_mb=memory_mb,
            runtime=minutes_for(len(seeds) * len(attacks)),
        params:
            options=canonical_json(SCALE.evaluation),
            margin=margin_json,
            template=template_json,
            runs=paths.runs(SCALE.name, "{run}"),
            weights=lambda wildcards: weights(SCALE, wildcards.run, "{seed}"),
            work=f"{paths.work(paths.runs(SCALE.name, '{run}'))}/eval_{label(seeds, attacks)}",
            seeds=seeds,
            attacks=attacks,
            code=digest(*SCORING_CODE, *ATTACKING_CODE),
        shell:
            "HF_HUB_OFFLINE=1 lethe evaluate --runs {params.runs} --weights {params.weights:q} --seeds {params.seeds}"
            " --attack {params.attacks} --benchmark {input.benchmark} --reference {input.reference}"
            " --options {params.options:q} --margin {params.margin:q} --template {params.template:q}"
            " --work {params.work} 2>&1 | tee {log}"


rule summarise:
    input:
        **summary_inputs(),
    output:
        files=SUMMARY_FILES,
        manifest=SUMMARY_MANIFEST,
    log:
        paths.log(SCALE.name, "summarise", STUDY.name),
    localrule: True
    conda:
        "../../envs/paper.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        scale=SCALE.name,
        study=STUDY.name,
        tier=CONFIG.tier,
        cells=hashlib.sha256(repr([CELLS, CURVES]).encode()).hexdigest(),
        out=summary_folder,
        code=digest(*SUMMARY_CODE),
    shell:
        "lethe summarise --scale {params.scale} --study {params.study} --tier {params.tier} --out {params.out}"
        " 2>&1 | tee {log}"
