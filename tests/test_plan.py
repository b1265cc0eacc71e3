import pytest

from lethe import config, plan
from lethe.errors import LetheError
from lethe.plan import Cell
from lethe.recipe import load_recipes


@pytest.fixture(scope="module")
def mini(repo):
    return config.load_scale("mini", repo)


def study(**runs):
    return config.Study(
        name="s", title="", tables=[], figures=[], runs=[{"benchmarks": "tofu", "models": "main"} | runs]
    )


def test_roles_become_names_and_each_cell_occurs_once(mini):
    runs = {"benchmarks": "tofu", "models": "main", "recipes": ["npo"], "attacks": ["none", "rtn4"], "seeds": "first"}
    twice = config.Study(name="s", title="", tables=[], figures=[], runs=[runs, runs])
    assert plan.plan(twice, mini, "core") == [
        Cell("tofu-forget10", "w128", "retrain", 0, "none"),
        Cell("tofu-forget10", "w128", "npo", 0, "none"),
        Cell("tofu-forget10", "w128", "npo", 0, "rtn4"),
    ]


def test_the_reference_is_there_even_if_the_study_does_not_ask(mini):
    assert Cell("tofu-forget10", "w64", "retrain", 0, "none") in plan.plan(
        study(models="ladder", recipes=["npo"]), mini, "core"
    )


def test_curves_are_planned_with_what_is_measured(mini):
    asked = config.Study(
        name="s",
        title="",
        tables=[],
        figures=[],
        runs=[{"benchmarks": "tofu", "models": "main", "recipes": ["npo"]}],
        curves=[
            {"benchmarks": "tofu", "models": "main", "recipes": ["npo"], "watch": {"every": 2, "rows": 5, "past": 9}},
            {
                "benchmarks": "tofu", "models": "ladder", "recipes": ["masc"], "tier": "full",
                "watch": {"every": 1, "rows": 5, "past": 9},
            },
        ],
    )  # fmt: skip
    found = plan.plan_curves(asked, mini, "core")
    assert [(c.run, c.seed, c.watch.every) for c in found] == [("tofu-forget10/w128/npo", s, 2) for s in (0, 1, 2)]
    assert len(plan.plan_curves(asked, mini, "full")) == 5 + 4 * 5


def test_a_tier_decides_seeds_and_cells(mini):
    asked = study(recipes=["npo"], tier="full")
    assert {cell.seed for cell in plan.plan(study(recipes=["npo"]), mini, "core")} == {0, 1, 2}
    assert {cell.seed for cell in plan.plan(asked, mini, "full")} == {0, 1, 2, 3, 4}
    assert plan.plan(asked, mini, "core") == []


def test_a_recipe_may_be_a_role(mini):
    assert "learn" in {cell.recipe for cell in plan.plan(study(recipes=["learning"]), mini, "core")}


def test_headline_is_the_first_benchmark_of_a_role(repo):
    scale = config.load_scale("mini-tofu", repo)
    both, first = (plan.plan(study(recipes=["npo"], headline=headline), scale, "core") for headline in (False, True))
    assert {cell.benchmark for cell in both} == {"tofu-forget05", "tofu-forget01"}
    assert {cell.benchmark for cell in first} == {"tofu-forget05"}


def test_models_that_are_given_have_one_seed(repo):
    paper = config.load_scale("paper", repo)
    cells = plan.plan(study(recipes=["base", "target", "masc"]), paper, "core")
    assert [cell.seed for cell in cells if cell.recipe == "target"] == [0]
    assert [cell.seed for cell in cells if cell.recipe == "base"] == [0]
    assert [cell.seed for cell in cells if cell.recipe == "masc"] == [0, 1, 2]
    ladder = plan.plan(study(models="ladder", recipes=["target"]), paper, "core")
    assert {cell.seed for cell in ladder if cell.recipe == "target"} == {0, 1, 2}


def test_a_role_that_the_scale_lacks_is_named(mini):
    has = r"\(has: main, inspected, ladder, muse\)"
    with pytest.raises(LetheError, match=rf"studies/s: models: scale 'mini' has no role 'mane' {has}"):
        plan.plan(study(models="mane", recipes=["npo"]), mini, "core")


@pytest.mark.parametrize(
    ("recipe", "folder", "weights"),
    [
        ("base", "results/mini/models/w128/base", "results/mini/models/w128/base"),
        ("target", "results/mini/models/w128/tofu/s2", "results/mini/models/w128/tofu/s2"),
        (
            "masc",
            "results/mini/runs/tofu-forget10/w128/masc/s2",
            "results/mini/runs/tofu-forget10/w128/masc/s2/weights",
        ),
    ],
)
def test_where_the_weights_of_a_run_lie(mini, recipe, folder, weights):
    run = f"tofu-forget10/w128/{recipe}"
    assert plan.run_folder(mini, run, 2) == folder
    assert plan.weights(mini, run, 2) == weights


def test_what_the_paper_stages_are_told_of_a_scale(repo):
    roles = plan.paper_roles(config.load_study("masc", repo), config.load_scale("paper", repo))
    assert roles["models"]["main"] == "llama2-7b" and roles["headline"]["tofu"] == "tofu-forget10"
    assert roles["models"]["of"]["tofu-forget10"] == "llama2-7b" and roles["models"]["of"]["muse-books"] == "muse-7b"
    assert roles["models"]["printed"]["qwen2.5-3b"] == "Qwen2.5-3B-Instruct"
    assert roles["learning"] == "target"


def test_a_benchmark_may_be_compared_with_the_retrained_model_of_another(mini):
    assert plan.reference_of(mini, "muse-news") == "muse-news"
    assert plan.reference_of(mini, "muse-news-sust-3") == "muse-news"
    cells = plan.plan(study(benchmarks="muse-sust", models="muse", recipes=["npo"], seeds="first"), mini, "core")
    assert [cell for cell in cells if cell.recipe == "retrain"] == [Cell("muse-news", "t128", "retrain", 0, "none")]
    assert sum(cell.recipe == "npo" for cell in cells) == 4


def test_the_retrained_model_that_is_given_has_one_seed(repo):
    paper = config.load_scale("paper", repo)
    cells = plan.plan(study(benchmarks="muse", models="muse", recipes=["target", "retrain", "npo"]), paper, "core")
    seeds = {recipe: {cell.seed for cell in cells if cell.recipe == recipe} for recipe in ("target", "retrain", "npo")}
    assert seeds == {"target": {0}, "retrain": {0}, "npo": {0, 1, 2}}


def test_settings_of_a_corpus_apply_to_all_its_benchmarks(repo, mini):
    recipes = load_recipes(repo / "config/recipes.yaml")
    news = plan.recipe_of(recipes, mini, "muse-news/t128/masc")
    assert (news.forget.k, news.forget.beta, news.stop.alpha) == (2, 5.0, "retrain")
    growing = plan.recipe_of(recipes, mini, "muse-news-scal-2/t128/masc")
    assert growing == news and plan.recipe_of(recipes, mini, "muse-books/t128/masc").forget.rho == 0.5
