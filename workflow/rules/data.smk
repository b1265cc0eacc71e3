# Data: the only rules, with the models' downloads, that may talk to a hub.


rule prepare_language:
    output:
        data=directory(paths.data(SCALE.name, "{language}")),
    log:
        paths.log(SCALE.name, "data", "{language}"),
    wildcard_constraints:
        language=any_of(LANGUAGES),
    localrule: True
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        spec=lambda wildcards: canonical_json(LANGUAGES[wildcards.language]),
        code=digest(*DATA_CODE),
    shell:
        "lethe prepare --kind {wildcards.language} --spec {params.spec:q} --out {output.data} 2>&1 | tee {log}"


rule prepare_corpus:
    output:
        data=directory(paths.data(SCALE.name, "{corpus}")),
    log:
        paths.log(SCALE.name, "data", "{corpus}"),
    wildcard_constraints:
        corpus=any_of(SCALE.corpora),
    localrule: True
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        spec=lambda wildcards: canonical_json(SCALE.corpora[wildcards.corpus]),
        code=digest(*DATA_CODE),
    shell:
        "lethe prepare --kind corpus --spec {params.spec:q} --out {output.data} 2>&1 | tee {log}"


rule prepare_benchmark:
    output:
        data=directory(paths.data(SCALE.name, "{benchmark}")),
    log:
        paths.log(SCALE.name, "data", "{benchmark}"),
    wildcard_constraints:
        benchmark=any_of(SCALE.benchmarks),
    localrule: True
    conda:
        "../../envs/compute.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        spec=benchmark_json,
        code=digest(*DATA_CODE),
    shell:
        "lethe prepare --kind benchmark --spec {params.spec:q} --out {output.data} 2>&1 | tee {log}"
