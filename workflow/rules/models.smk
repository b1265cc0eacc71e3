# Models that runs start from: the base, and the target, which was fine-tuned on the corpus.


rule pretrain:
    input:
        data=language_of,
    output:
        base=directory(paths.base(SCALE.name, "{model}")),
    log:
        paths.log(SCALE.name, "pretrain", "{model}"),
    wildcard_constraints:
        model=any_of(TINY),
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb,
        runtime=minutes_for(1),
    params:
        source=source_json,
        recipe=model_recipe("pretrain"),
        template=template_json,
        work=paths.work(paths.base(SCALE.name, "{model}")),
        code=digest(*PRETRAINING_CODE),
    shell:
        "HF_HUB_OFFLINE=1 lethe pretrain --source {params.source:q} --data {input.data} --recipe {params.recipe:q}"
        " --template {params.template:q} --out {output.base} --work {params.work} 2>&1 | tee {log}"


rule fetch_base:
    output:
        base=directory(paths.base(SCALE.name, "{model}")),
    log:
        paths.log(SCALE.name, "fetch", "{model}"),
    wildcard_constraints:
        model=any_of(name for name in SCALE.models if name not in TINY),
    localrule: True
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb,
        runtime=120,
    params:
        source=source_json,
        trust=trust_option,
        work=paths.work(paths.base(SCALE.name, "{model}")),
        code=digest(*FETCHING_CODE),
    shell:
        "lethe pretrain --source {params.source:q} {params.trust} --out {output.base} --work {params.work}"
        " 2>&1 | tee {log}"


rule fetch_target:
    output:
        target=directory(f"{paths.targets(SCALE.name, '{target}')}/s{REFERENCE_SEED}"),
    log:
        paths.log(SCALE.name, "fetch", "{target}"),
    wildcard_constraints:
        target=any_of(GIVEN),
    localrule: True
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb,
        runtime=120,
    params:
        source=source_json,
        trust=trust_option,
        work=paths.work(f"{paths.targets(SCALE.name, '{target}')}/s{REFERENCE_SEED}"),
        code=digest(*FETCHING_CODE),
    shell:
        "lethe pretrain --source {params.source:q} {params.trust} --out {output.target} --work {params.work}"
        " 2>&1 | tee {log}"


rule fetch_retrained:
    output:
        weights=directory(f"{paths.seed(SCALE.name, '{run}', REFERENCE_SEED)}/weights"),
        record=f"{paths.seed(SCALE.name, '{run}', REFERENCE_SEED)}/run.json",
        trace=f"{paths.seed(SCALE.name, '{run}', REFERENCE_SEED)}/trace.csv",
    log:
        paths.log(SCALE.name, "fetch", "{run}"),
    wildcard_constraints:
        run=any_of(RETRAINED),
    localrule: True
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb,
        runtime=120,
    params:
        source=source_json,
        trust=trust_option,
        out=paths.seed(SCALE.name, "{run}", REFERENCE_SEED),
        work=paths.work(paths.seed(SCALE.name, "{run}", REFERENCE_SEED)),
        code=digest(*FETCHING_CODE),
    shell:
        "lethe pretrain --as-run --source {params.source:q} {params.trust} --out {params.out} --work {params.work}"
        " 2>&1 | tee {log}"


for seeds, targets in batches(TARGETS).items():

    rule:
        name:
            f"finetune_target_{label(seeds)}"
        input:
            base=base_of,
            corpus=corpus_of,
        output:
            targets=[directory(f"{paths.targets(SCALE.name, '{target}')}/s{seed}") for seed in seeds],
        log:
            paths.log(SCALE.name, "finetune", f"{{target}}_{label(seeds)}"),
        wildcard_constraints:
            target=any_of(targets),
        conda:
            "../../envs/compute.yaml"
        threads: 1
        resources:
            mem_mb=memory_mb,
            runtime=minutes_for(len(seeds)),
        params:
            recipe=model_recipe("target"),
            template=template_json,
            rows=rows_options,
            seeds=seeds,
            out=paths.targets(SCALE.name, "{target}"),
            work=paths.work(paths.targets(SCALE.name, "{target}")),
            trust=trust_option,
            code=digest(*TRAINING_CODE),
        shell:
            "HF_HUB_OFFLINE=1 lethe finetune --flat --model {input.base} {params.rows} --recipe {params.recipe:q}"
            " --template {params.template:q} {params.trust} --seeds {params.seeds} --out {params.out}"
            " --work {params.work} 2>&1 | tee {log}"
