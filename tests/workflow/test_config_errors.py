"""What is wrong with a configuration is said in one line before any job."""

import pytest


def one_line_of(answer: tuple[int, str]) -> str:
    """What snakemake said, beside the profile and config that it always names."""
    code, said = answer
    lines = [line for line in said.splitlines() if not line.startswith(("Using workflow specific", "Config file "))]
    assert code != 0 and len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("scales=mini", "lethe: config/config.yaml: scales: unknown key"),
        ("tier=huge", "lethe: config/config.yaml: tier: Input should be 'core' or 'full', got 'huge'"),
        ("scale=mega", "lethe: no scale 'mega': config/scales/mega.yaml does not exist (has: mini, "),
        ("study=musc", "lethe: no study 'musc': config/studies/musc.yaml does not exist (has: architectures, "),
        ("corpus_dir=data", "lethe: config/config.yaml: corpus_dir is set, but scale 'mini' has no local corpus"),
    ],
)
def test_a_wrong_option(project, option, line):
    assert one_line_of(project.snakemake("-n", "--config", option)).startswith(line)


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        ("studies/masc.yaml", "masc-base", "masc-bass", "lethe: config/recipes.yaml: no recipe 'masc-bass' (has: "),
        ("studies/masc.yaml", "[bnb-int8, rtn8, rtn3]", "[none, rtn5]", "lethe: attack: expected one of "),
        (
            "recipes.yaml",
            "eta: 0.25,",
            "eta: 0.25, etta: 1,",
            "lethe: config/recipes.yaml: recipes.masc forget.margin_hinge.etta: unknown key",
        ),
        (
            "scales/mini.yaml",
            "main: [w128]",
            "main: [w182]",
            "lethe: config/scales/mini.yaml: roles.models.main: unknown 'w182' (has: ",
        ),
    ],
)
def test_a_wrong_entry(project, file, old, new, line):
    project.edit(f"config/{file}", old, new)
    assert one_line_of(project.snakemake("-n")).startswith(line)


def test_an_attack_whose_library_is_absent(project):
    (project.root / "workflow/sitecustomize.py").write_text("import sys\nsys.modules['bitsandbytes'] = None\n")
    line = "lethe: attack bnb-fp4: bitsandbytes is not installed (fp4 needs no more than torch)"
    assert one_line_of(project.snakemake("-n")) == line


def test_a_local_corpus_that_is_not_there(project):
    line = "lethe: config/scales/mini-tofu.yaml: corpora.tofu.source.local: no folder 'nowhere'"
    assert one_line_of(project.snakemake("-n", "--config", "scale=mini-tofu", "corpus_dir=nowhere")) == line
