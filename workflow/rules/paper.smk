# From the summary to fits, tables and figures: light, no torch.


rule fit:
    input:
        summary=SUMMARY_FILES,
        manifest=SUMMARY_MANIFEST,
    output:
        fits=paths.fits(OUT),
    log:
        paths.log(OUT, "paper", f"{STUDY.name}_fits"),
    localrule: True
    conda:
        "../../envs/paper.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        folder=summary_folder,
        roles=ROLES,
        code=digest(*FIT_CODE),
    shell:
        "lethe fit --summary {params.folder} --roles {params.roles:q} --out {output.fits} 2>&1 | tee {log}"


for kind, id, stem, shown, others in ARTEFACTS:

    rule:
        name:
            f"draw_{id}"
        input:
            summary=SUMMARY_FILES,
            manifest=SUMMARY_MANIFEST,
            fits=rules.fit.output.fits,
            reported=paths.reported(STUDY.name),
        output:
            shown=report(f"{stem}.{shown}", **report_entry(kind, id)),
            others=[f"{stem}.{other}" for other in others],
        log:
            paths.log(OUT, "paper", f"{STUDY.name}_{id}"),
        localrule: True
        conda:
            "../../envs/paper.yaml"
        threads: 1
        resources:
            mem_mb=1000,
            runtime=10,
        params:
            artefact=f"--study {STUDY.name} --kind {kind} --id {id}",
            folder=summary_folder,
            roles=ROLES,
            out=stem_of,
            code=digest(*PAPER_CODE),
        shell:
            "lethe draw {params.artefact} --summary {params.folder} --fits {input.fits} --reported {input.reported}"
            " --roles {params.roles:q} --out {params.out} 2>&1 | tee {log}"
