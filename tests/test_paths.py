from lethe import paths


def test_a_wildcard_gives_the_pattern_of_the_paths():
    pattern = paths.evaluation("mini", "{run}", 0, "none")
    assert (
        pattern.format(run="b/m/r")
        == paths.evaluation("mini", "b/m/r", 0, "none")
        == "results/mini/runs/b/m/r/s0/eval/none.json"
    )
    assert f"{paths.targets('mini', '{target}').format(target='m/c')}/s1" == paths.target("mini", "m", "c", 1)


def test_items_lie_beside_their_evaluation():
    assert paths.items("a/eval/bnb-nf4.json") == "a/eval/bnb-nf4.items.parquet"


def test_resume_state_lies_outside_what_rules_make():
    assert paths.work(paths.seed("mini", "b/m/r", 0)) == "work/mini/runs/b/m/r/s0"
