from pathlib import Path

import pytest
import yaml

from lethe import config
from lethe.errors import LetheError
from lethe.recipe import load_recipes, resolve, set_values
from lethe.schema import canonical_json, merge, spec_sha256

SCALES = [file.stem for file in (Path(__file__).parents[1] / "config/scales").glob("*.yaml")]

OPTIMIZER = {
    "name": "adamw", "lr": 1.0, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "schedule": "constant",
    "warmup": 0.0, "clip": None,
}  # fmt: skip
ENTRY = {
    "method": "gradient", "forget": {"loss": "ga", "reduction": "per_token"}, "stop": {"rule": "budget"}, "epochs": 1,
    "optimizer": OPTIMIZER, "batch": {"rows": 2, "accumulate": 1, "effective": 2},
}  # fmt: skip


def written(tmp_path, scale: str, raw: dict):
    """A scale file of its own in an otherwise empty project."""
    (tmp_path / "config/scales").mkdir(parents=True, exist_ok=True)
    (tmp_path / f"config/scales/{scale}.yaml").write_text(yaml.safe_dump(raw))
    return tmp_path


def scale_of(repo, name: str = "mini") -> dict:
    return yaml.safe_load((repo / f"config/scales/{name}.yaml").read_text())


# ------------------------------------------------------------------------------------------------------ recipes


def test_the_most_specific_value_wins_and_a_parent_comes_first():
    recipes = {
        "a": ENTRY | {"epochs": 1, "at": {"x": {"epochs": 2, "m": {"epochs": 3}, "b": {"epochs": 4}}}},
        "child": {"from": "a", "optimizer": {"lr": 7.0}, "at": {"y": {"epochs": 5}}},
    }
    assert resolve(recipes, "a").epochs == 1
    assert resolve(recipes, "a", ["x"]).epochs == 2
    assert resolve(recipes, "a", ["x"], model="m").epochs == 3
    assert resolve(recipes, "a", ["x"], model="m", benchmark="b").epochs == 4
    assert resolve(recipes, "child", ["x"], model="m").epochs == 3
    assert resolve(recipes, "child", ["x", "y"], model="m", benchmark="b").epochs == 5
    assert resolve(recipes, "child").optimizer.lr == 7.0
    assert resolve(recipes, "child").optimizer.betas == (0.9, 0.999)


@pytest.mark.parametrize("scale", SCALES)
def test_every_recipe_resolves_at_every_scale(repo, scale):
    recipes, found = load_recipes(repo / "config/recipes.yaml"), config.load_scale(scale, repo)
    config.check_recipes(recipes, [config.load_scale(name, repo) for name in SCALES])
    overlays = [name for name, entry in recipes.items() if not entry.keys() & {"method", "from"}]
    for name in [f"untouched+{name}" if name in overlays else name for name in recipes]:
        for model in found.models:
            for benchmark in found.benchmarks:
                recipe = resolve(recipes, name, found.settings, model=model, benchmark=benchmark)
                assert recipe.name == name
                if recipe.batch:
                    recipe.batch.check(processes=1)


def test_the_papers_values_are_those_of_the_released_code(repo):
    """MASC Table 8 and repro/run_masc_tofu.sh; the scaling runs have settings of their own."""
    recipes = load_recipes(repo / "config/recipes.yaml")
    tofu = resolve(recipes, "masc", ["paper"], model="llama2-7b", benchmark="tofu-forget10")
    assert (tofu.forget.weight, tofu.forget.rho, tofu.forget.eta, tofu.forget.k, tofu.forget.beta) == (
        0.05,
        0.7,
        0.25,
        10,
        1.0,
    )
    assert (tofu.stop.alpha, tofu.stop.every, tofu.stop.trigger, tofu.stop.confirm) == (0.475, 2, 4, 32)
    assert (tofu.adapter.r, tofu.adapter.alpha, tofu.optimizer.lr, tofu.optimizer.weight_decay) == (16, 32, 1e-4, 0.01)
    scaling = resolve(recipes, "masc", ["paper"], model="qwen2.5-3b", benchmark="tofu-forget10")
    assert (scaling.forget.weight, scaling.forget.rho, scaling.forget.eta, scaling.stop.alpha) == (0.1, 0.5, 0.5, 0.2)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"epoch": "forgets"},
            "config/recipes.yaml: recipes.a epoch: Input should be 'forget' or 'longest', got 'forgets'",
        ),
        ({"optimiser": {}}, "config/recipes.yaml: recipes.a optimiser: unknown key"),
        ({"epochs": None}, "config/recipes.yaml: recipes.a a recipe with method: gradient needs 'epochs'"),
        ({"from": "b"}, "config/recipes.yaml: recipes.a.from: no recipe 'b' (has: a)"),
    ],
)
def test_a_wrong_recipe_is_one_line(change, line):
    with pytest.raises(LetheError) as e:
        resolve({"a": ENTRY | change}, "a")
    assert str(e.value) == line


def test_a_recipe_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(LetheError, match=r"no recipe 'b' \(has: a\)"):
        resolve({"a": ENTRY}, "b")


@pytest.mark.parametrize(
    ("at", "place"),
    [
        ({"minni": {}}, "at.minni: no scale has this setting"),
        ({"mini": {"w1288": {}}}, "at.mini.w1288: no field, model, corpus or"),
    ],
)
def test_an_override_that_nothing_would_read_is_an_error(repo, at, place):
    with pytest.raises(LetheError, match=place):
        config.check_recipes({"a": ENTRY | {"at": at}}, [config.load_scale("mini", repo)])


def test_values_set_on_the_command_line_are_yaml():
    raw = set_values(ENTRY, ["optimizer.lr=1e-3", "batch.rows=4", "optimizer.clip=null"])
    assert float(raw["optimizer"]["lr"]) == 1e-3 and raw["batch"]["rows"] == 4 and raw["optimizer"]["clip"] is None
    assert ENTRY["batch"]["rows"] == 2
    with pytest.raises(LetheError, match="expected key=value, got 'epochs'"):
        set_values(ENTRY, ["epochs"])


def test_a_batch_that_a_change_of_hardware_would_alter_is_an_error():
    recipe = resolve({"a": ENTRY}, "a")
    with pytest.raises(LetheError, match="got 2 for 2 x 1 x 2 = 4"):
        recipe.batch.check(processes=2)


# ------------------------------------------------------------------------------------------------------- merging


@pytest.mark.parametrize(
    ("base", "override", "merged"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"loss": "npo", "beta": 0.1}, {"beta": 0.5}, {"loss": "npo", "beta": 0.5}),
        ({"loss": "npo", "beta": 0.1}, {"loss": "npo", "beta": 0.5}, {"loss": "npo", "beta": 0.5}),
        ({"loss": "npo", "beta": 0.1}, {"loss": "ga"}, {"loss": "ga"}),
        ({"world": {"seed": 1}}, {"local": "tofu"}, {"local": "tofu"}),
        ({"tiny": {"layers": 2, "heads": 2}}, {"tiny": {"heads": 4}}, {"tiny": {"layers": 2, "heads": 4}}),
    ],
)
def test_sections_merge_by_key_and_another_kind_replaces(base, override, merged):
    assert merge(base, override) == merged


def test_a_recipe_has_one_spelling_and_one_hash():
    a, b = (resolve({"a": dict(entry)}, "a") for entry in (ENTRY, reversed(ENTRY.items())))
    assert canonical_json(a) == canonical_json(b) and spec_sha256(a) == spec_sha256(b)
    changed = resolve({"a": ENTRY | {"epochs": 2}}, "a")
    assert spec_sha256(changed) != spec_sha256(a)


# -------------------------------------------------------------------------------------------------------- scales


def test_a_scale_that_extends_another_keeps_the_rest(repo):
    mini, smoke = (config.load_scale(name, repo) for name in ("mini", "smoke"))
    assert list(smoke.seeds.core) == [0]
    assert smoke.models["w128"].base.tiny.layers == mini.models["w128"].base.tiny.layers
    assert smoke.models["w128"].base.tiny.hidden_size < mini.models["w128"].base.tiny.hidden_size
    assert smoke.benchmarks == mini.benchmarks


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"benchmark": {}}, "config/scales/x.yaml: benchmark: unknown key"),
        ({"roles": {"benchmarks": {"tofu": ["muse"]}, "models": {}}}, "unknown 'muse' (has: muse-books, muse-news"),
        ({"world": None}, "is tiny and learns the world's language, but there is no 'world'"),
        (
            {"benchmarks": {"b": {"corpus": "c", "suite": "tofu", "forget": "f"}}},
            "benchmarks.b.corpus: no corpus 'c' (has: books, news, tofu)",
        ),
        ({"seeds": {"core": [], "full": [0]}}, "config/scales/x.yaml: seeds.core: List should have at least 1 item"),
    ],
)
def test_a_wrong_scale_is_one_line(repo, tmp_path, change, line):
    written(tmp_path, "x", scale_of(repo) | change)
    with pytest.raises(LetheError) as e:
        config.load_scale("x", tmp_path)
    assert line in str(e.value) and "\n" not in str(e.value)


def test_a_scale_or_study_that_is_not_there_is_named_with_those_that_are(repo):
    with pytest.raises(LetheError, match=r"no scale 'big': config/scales/big.yaml does not exist \(has: mini, "):
        config.load_scale("big", repo)
    with pytest.raises(LetheError, match=r"no study 'mask': config/studies/mask.yaml does not exist \(has: "):
        config.load_study("mask", repo)


def test_what_is_not_yaml_is_named_with_its_line(tmp_path):
    (tmp_path / "recipes.yaml").write_text("a:\n  b: [1\nc: 2\n")
    with pytest.raises(LetheError, match=r"recipes.yaml line 3: not YAML"):
        load_recipes(tmp_path / "recipes.yaml")


def test_revisions_on_the_hub_are_pinned_by_commit(repo):
    sources = [
        source
        for model in config.load_scale("paper", repo).models.values()
        for source in (model.base, *model.targets.values(), *model.retrained.values())
    ]
    sources += [corpus.source for corpus in config.load_scale("paper", repo).corpora.values()]
    assert len(sources) == 14
    assert all(len(s.revision) == 40 and set(s.revision) <= set("0123456789abcdef") for s in sources)


def test_config_keys_are_checked():
    assert config.load_config({"scale": "mini", "study": "masc", "tier": "core"}).source == "computed"
    with pytest.raises(LetheError, match=r"config/config\.yaml: tier: Field required"):
        config.load_config({"scale": "mini", "study": "masc"})
