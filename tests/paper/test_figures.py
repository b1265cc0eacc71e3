import math
import subprocess
import sys
from types import SimpleNamespace

import docutils.core
import jinja2
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from synthetic_summary import MUSE_ROLES, ROLES, edit, write_summary

from lethe import paths
from lethe.errors import LetheError
from lethe.paper import masc
from lethe.paper.render import write_figure
from lethe.paper.style import COLUMN, PAGE, looks, paper_style

TOFU = "tofu-forget10"
SMALL = {"recipes": ["masc"], "seeds": 1, "ladder": ["w64", "w128"], "attacks": ["none", "bnb-nf4"]}


@pytest.fixture(scope="module")
def drawn(data, tmp_path_factory):
    """The folder with every figure, written once."""
    folder = tmp_path_factory.mktemp("figures")
    for id in masc.FIGURES:
        write_figure("masc", id, data, folder / id)
    return folder


def draw(id, data):
    """A figure with its texts placed, but no file."""
    with paper_style():
        figure = masc.FIGURES[id](data)
        FigureCanvasAgg(figure.drawing).draw()
    return figure


def numbers(drawn, id, benchmark=TOFU):
    return pd.read_csv(drawn / f"{id}.csv").query("benchmark == @benchmark")


@pytest.mark.parametrize("id", masc.FIGURES)
def test_a_figure_is_a_pdf_with_embedded_truetype_a_200_dpi_png_and_its_numbers(drawn, id):
    pdf = (drawn / f"{id}.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/FontFile2" in pdf and b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    image = imread(drawn / f"{id}.png")
    assert image.shape[1] in (round(200 * COLUMN), round(200 * PAGE))
    assert (image[..., :3].min(axis=2) < 0.5).mean() > 0.005  # something was drawn
    assert len(pd.read_csv(drawn / f"{id}.csv"))


@pytest.mark.parametrize("id", masc.FIGURES)
def test_nothing_is_cut_off_at_the_border(drawn, id):
    image = imread(drawn / f"{id}.png")[..., :3]
    for edge in (image[0], image[-1], image[:, 0], image[:, -1]):
        assert (edge > 0.99).all()


@pytest.mark.parametrize("id", ["fig1", "fig5"])  # one with polar axes, one with a colour bar
def test_the_same_numbers_give_the_same_bytes(drawn, data, tmp_path, id):
    write_figure("masc", id, data, tmp_path / id)
    for suffix in ("pdf", "png", "csv"):
        assert (tmp_path / f"{id}.{suffix}").read_bytes() == (drawn / f"{id}.{suffix}").read_bytes()


def test_figure_1_plots_the_cells_of_table_1(drawn, data):
    table = masc.TABLES["table1"](data).frame.set_index("recipe")
    ours = numbers(drawn, "fig1").query("source == 'ours'").set_index(["recipe", "axis"])
    assert ours.loc[("simnpo", "time"), "mean"] == pytest.approx(table.loc["simnpo", "time_cpu_s_mean"])
    assert ours.loc[("simnpo", "time"), "printed"] == 541.7
    assert ours.loc[("masc", "1-Prob"), "mean"] == pytest.approx(table.loc["masc", "1-forget.prob_mean"])
    assert ours.loc[("masc", "MU"), "std"] == pytest.approx(table.loc["masc", "model_utility_std"])
    printed = numbers(drawn, "fig1").query("source == 'paper'").set_index(["recipe", "axis"])
    assert printed.loc[("npo-klr", "Truth Ratio"), "mean"] == 0.577
    assert set(ours.loc[("masc", "time"), ["unit"]]) == {"CPU seconds"}


def test_figure_5_averages_the_forget_scores(drawn):
    printed = numbers(drawn, "fig5").query("source == 'paper'").set_index("recipe")
    assert printed.loc["masc", "efficacy_mean"] == pytest.approx((0.629 + 0.672 + 0.633) / 3)
    assert printed.loc["masc", ["utility_mean", "time_mean"]].tolist() == [0.666, 87.9]
    assert printed.index[printed["on_front"]].tolist() == ["masc"]  # every other printed method has less of both


def test_figure_5_leaves_the_references_untimed_and_off_the_front(drawn):
    ours = numbers(drawn, "fig5").query("source == 'ours'").set_index("recipe")
    assert ours.loc[["target", "retrain"], "time_mean"].isna().all()
    assert not ours.loc[["target", "retrain"], "on_front"].any()
    assert ours["on_front"].any() and ours.loc["masc", "time_mean"] > 0


def front_of(load, folder, change):
    """Figure 5 of a summary whose forget scores and utility `change` moves."""
    write_summary(folder, recipes=["target", "retrain", "npo", "masc"], ladder=["w128"], attacks=["none"])
    edit(folder, "metrics.csv", change)
    return masc.FIGURES["fig5"](load(folder))


def set_points(frame, recipe, efficacy, utility, jitter=0.0):
    """Give a recipe this efficacy (1-ROUGE-L, 1-Prob, truth ratio) and utility; seeds differ by `jitter`."""
    here = (frame["recipe"] == recipe) & (frame["model"] == "w128")
    for metric, sign in (("forget.rouge_l_recall", -1), ("forget.prob", -1), ("forget.truth_ratio.geo", 1)):
        rows = here & (frame["metric"] == metric)
        moved = efficacy + jitter * (frame.loc[rows, "seed"] - 1)
        frame.loc[rows, "value"] = moved if sign > 0 else 1 - moved
    rows = here & (frame["metric"] == "model_utility")
    frame.loc[rows, "value"] = utility
    return frame


def test_a_small_lead_of_the_means_is_on_their_front_alone(load, tmp_path):
    def close(frame):
        set_points(frame, "retrain", 0.5, 0.6)
        return set_points(set_points(frame, "npo", 0.501, 0.7, jitter=0.05), "masc", 0.5, 0.7)

    figure = front_of(load, tmp_path / "close", close)
    ours = figure.numbers.query("source == 'ours'").set_index("recipe")
    assert ours.loc[["npo", "masc"], "on_front"].all()
    assert ours.loc["npo", "on_mean_front"] and not ours.loc["masc", "on_mean_front"]
    said = " ".join(figure.findings)
    assert "MASC is dominated beyond the spread over seeds by none." in said
    assert "not told apart from it: NPO, MASC." in said and "taught: none;" in said
    assert "area of 0.3507 above the reference point (0, 0)" in said  # .7 x .501


def test_a_clear_lead_dominates_and_lies_above_retraining(load, tmp_path):
    def clear(frame):
        set_points(frame, "retrain", 0.5, 0.6)
        return set_points(set_points(frame, "npo", 0.6, 0.7, jitter=0.001), "masc", 0.4, 0.6, jitter=0.001)

    figure = front_of(load, tmp_path / "clear", clear)
    ours = figure.numbers.query("source == 'ours'").set_index("recipe")
    assert ours.loc["npo", "on_front"] and not ours.loc["masc", "on_front"]
    said = " ".join(figure.findings)
    assert "MASC is dominated beyond the spread over seeds by NPO." in said
    assert "taught: NPO; below it: MASC; not told apart from it: none." in said


def test_the_drawn_front_never_rises_with_utility(data):
    with paper_style():
        axes = masc.FIGURES["fig5"](data).drawing.axes[0]
    (front,) = [line for line in axes.get_lines() if line.get_label() == "front of the means"]
    assert (np.diff(front.get_ydata()) <= 0).all() and (np.diff(front.get_xdata()) >= 0).all()


def test_the_deviation_of_efficacy_is_that_of_each_seeds_mean(drawn, data):
    suite = data.suite(TOFU)
    rows = data.per_seed(TOFU, suite.forget)
    rows = rows[rows["recipe"] == "rmu"]
    per_seed = rows[[s.name for s in suite.forget]].mean(axis=1)
    ours = numbers(drawn, "fig5").query("source == 'ours'").set_index("recipe")
    assert ours.loc["rmu", "efficacy_std"] == pytest.approx(per_seed.std(ddof=1))


@pytest.mark.parametrize(("id", "stage"), [("fig3", "learning"), ("fig7", "unlearning")])
def test_drawn_lines_are_the_fits_of_fits_csv(drawn, data, id, stage):
    points = numbers(drawn, id)
    fits = data.fits[(data.fits["stage"] == stage) & (data.fits["n_kind"] == "total")].set_index(["recipe", "metric"])
    for row in points.to_dict("records"):
        law = fits.loc[(row["recipe"], row["metric"])]
        assert row["fitted"] == pytest.approx(law["C"] * (row["n_params"] / 1e9) ** law["alpha"])
    assert set(points["model"]) == set(ROLES["models"]["ladder"])


def test_figure_3_holds_the_printed_inset(drawn):
    law = numbers(drawn, "fig3").groupby("metric").first()
    assert law.loc["forget.rouge_l_recall", ["alpha_paper", "r2_paper"]].tolist() == [0.269, 0.954]
    assert math.log(law.loc["forget.para_rouge_l_recall", "C_paper"]) == pytest.approx(-0.972)
    assert "model_utility" not in law.index


def test_figure_7_holds_the_printed_fits_of_its_own_method(drawn):
    law = numbers(drawn, "fig7").groupby(["recipe", "metric"]).first()
    assert law.loc[("simnpo", "model_utility"), "alpha_paper"] == 0.1489
    assert law.loc[("masc", "model_utility"), "C_paper"] == 0.4451


@pytest.mark.parametrize("id", masc.FIGURES)
def test_one_seed_one_method_and_two_sizes_are_drawn_without_a_warning(load, tmp_path, id, recwarn):
    data = load(write_summary(tmp_path / "summary", muse=True, **SMALL), MUSE_ROLES)
    figure = draw(id, data)
    assert len(figure.numbers) and not [str(w.message) for w in recwarn]


def test_a_score_of_zero_is_left_off_the_log_axis_and_kept_in_the_numbers(load, tmp_path, recwarn):
    folder = write_summary(tmp_path / "summary", recipes=["masc"], seeds=2, attacks=["none"])

    def vanish(frame):
        masc_at_64 = (frame["recipe"] == "masc") & (frame["model"] == "w64")
        frame.loc[masc_at_64 & (frame["metric"] == "forget.value_recall"), "value"] = 0.0
        return frame

    edit(folder, "metrics.csv", vanish)
    points = draw("fig7", load(folder)).numbers.query("metric == 'forget.value_recall'")
    assert points.loc[points["model"] == "w64", "mean"].item() == 0.0 and points["fitted"].isna().all()
    assert not [str(w.message) for w in recwarn]


def test_empty_numbers_are_empty_cells(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", **SMALL))
    write_figure("masc", "fig3", data, tmp_path / "fig3")
    assert "nan" not in (tmp_path / "fig3.csv").read_text().lower()
    assert pd.read_csv(tmp_path / "fig3.csv")[["std", "fitted"]].isna().all(axis=None)


def test_a_second_benchmark_is_one_more_row_of_panels(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], seeds=1)
    one = load(folder)
    for name in ("metrics.csv", "runs.csv", "curves.csv.gz"):
        edit(folder, name, lambda frame: pd.concat([frame, frame.assign(benchmark="other-x")]))
    data = load(folder, ROLES | {"headline": {"tofu": TOFU, "other": "other-x"}, "suites": {"other-x": "tofu"}})
    for make in (make for id, make in masc.FIGURES.items() if id not in ("scalability", "sustainability")):
        two = make(data)
        assert set(two.numbers["benchmark"]) == {TOFU, "other-x"}
        assert len(two.drawing.axes) > len(make(one).drawing.axes)


@pytest.mark.parametrize(("id", "what"), [("fig3", "learn on models w64"), ("fig7", "simnpo, masc on models")])
def test_a_figure_without_runs_is_refused(load, tmp_path, id, what):
    data = load(write_summary(tmp_path / "summary", recipes=["target", "ga"], ladder=[]))
    with pytest.raises(LetheError, match=f"the summary has no run of {what}"):
        write_figure("masc", id, data, tmp_path / id)


def test_known_recipes_look_alike_everywhere_and_no_two_recipes_share_a_marker():
    names = [*looks(["masc", "ga", "target", "retrain", "npo", "npo-klr", "rmu", "simnpo", "graddiff", "masc-full"])]
    with_others = looks([*names, "zeta", "alpha", "graddiff-stop", "masc-random"])
    assert with_others["masc"] == looks(["masc"])["masc"]
    markers = [look.marker for look in with_others.values()]
    assert len(set(markers)) == len(markers)


def test_drawing_leaves_the_callers_style_alone():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with paper_style():
        assert mpl.rcParams["pdf.fonttype"] == 42
    assert dict(mpl.rcParams) == before


def test_bars_are_told_apart_without_colour(data):
    with paper_style():
        figure = masc.FIGURES["fig1"](data)
    hatches = [patch.get_hatch() for patch in figure.drawing.axes[0].patches]
    assert len(set(hatches)) == len(hatches) == 4
    lines = figure.drawing.axes[1].get_lines()
    assert len({(line.get_marker(), str(line.get_linestyle())) for line in lines}) == 4


@pytest.mark.parametrize("id", masc.FIGURES)
def test_texts_of_a_figure_do_not_overlap(data, id):
    drawing = draw(id, data).drawing
    boxes = [(text.get_text(), text.get_window_extent()) for text in drawing.legends[0].get_texts()]
    for ax in drawing.axes:
        texts = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        for axis, (low, high) in ((ax.xaxis, sorted(ax.get_xlim())), (ax.yaxis, sorted(ax.get_ylim()))):
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes += [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text() and t.get_visible()]
    clashes = [
        (a, b)
        for i, (a, one) in enumerate(boxes)
        for b, two in boxes[i + 1 :]
        if np.all(np.minimum(one.max, two.max) - np.maximum(one.min, two.min) > 1)
    ]
    assert not clashes


# ------------------------------------------------------------------------------------------------ captions


@pytest.mark.parametrize("id", [*masc.TABLES, *masc.FIGURES])
def test_every_artefact_has_a_caption_that_names_its_scale_and_is_valid_rst(repo, id):
    text = (repo / paths.caption("masc", id)).read_text(encoding="utf-8")

    job = SimpleNamespace(wildcards=SimpleNamespace(scale="smoke"), config={"scale": "other"})
    filled = jinja2.Template(text, undefined=jinja2.StrictUndefined).render(snakemake=job)
    assert "scale *smoke*" in filled
    docutils.core.publish_string(filled, settings_overrides={"report_level": 2, "halt_level": 2})


def test_every_caption_belongs_to_an_artefact(repo):
    folder = (repo / paths.caption("masc", "x")).parent
    assert {p.stem for p in folder.glob("*.rst")} == {*masc.TABLES, *masc.FIGURES}


def test_the_paper_stages_import_neither_torch_nor_transformers():
    code = "import lethe.paper.render, lethe.analysis.compare, sys; print({'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
