from lethe import paths


configfile: paths.CONFIG


include: "workflow/rules/common.smk"


if COMPUTED:

    include: "workflow/rules/data.smk"
    include: "workflow/rules/models.smk"
    include: "workflow/rules/unlearn.smk"
    include: "workflow/rules/evaluate.smk"


include: "workflow/rules/paper.smk"


rule tables:
    input:
        tables=[f"{stem}.{shown}" for kind, id, stem, shown, others in ARTEFACTS if kind == "table"],


rule figures:
    input:
        figures=[f"{stem}.{shown}" for kind, id, stem, shown, others in ARTEFACTS if kind == "figure"],


rule all:
    default_target: True
    input:
        summary=SUMMARY_MANIFEST,
        tables=rules.tables.input,
        figures=rules.figures.input,


localrules:
    all,
    tables,
    figures,


onsuccess:
    say_compute_share()
