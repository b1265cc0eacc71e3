"""What 4 bits bring back: Table 3 on TOFU, and its grid of two starts and two quantisers."""

import pytest
from synthetic_summary import edit, write_summary

from lethe.paper import masc
from lethe.paper.masc_quantised import GRID_ATTACKS, printed_changes, restored

TOFU = "tofu-forget10"
NATIVE = {"untouched+nf4": "target", "simnpo+nf4": "simnpo", "masc+nf4": "masc", "masc-full+nf4": "masc-full"}


@pytest.fixture(scope="module")
def grid(data):
    return masc.TABLES["table3-grid"](data)


def row(table, **keys):
    frame = table.frame
    for column, value in keys.items():
        frame = frame[frame[column] == value]
    (record,) = frame.to_dict("records")
    return record


def test_the_grid_has_both_starts_under_both_quantisers(grid):
    native = grid.frame[grid.frame["start"] == "4-bit-native"]
    assert set(native["recipe"]) == {"target", "npo-klr", "simnpo", "simnpo-small", "masc", "masc-full"}
    assert set(grid.frame["attack"]) == {"none", *GRID_ATTACKS}
    small = row(grid, recipe="simnpo-small", start="4-bit-native", attack="bnb-nf4")
    assert small["forget.value_recall_delta_mean"] == pytest.approx(0.79, abs=0.02)
    assert row(grid, recipe="masc", start="as it is", attack="none")["update_over_step"] == 0.08
    assert any("no evidence for bf16 language models" in note for note in grid.notes)


def test_the_grid_shows_what_is_left_of_the_rest(grid, load, tmp_path):
    found = row(grid, recipe="masc", start="4-bit-native", attack="rtn4")
    assert found["retain.value_recall_delta_mean"] == pytest.approx(-0.02)
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])
    edit(folder, "metrics.csv", lambda frame: frame[frame["metric"] != "retain.value_recall"])
    assert "retain.rouge_l_recall_mean" in masc.TABLES["table3-grid"](load(folder)).frame


def test_a_scale_without_the_constructed_start_has_the_other(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])
    table = masc.TABLES["table3-grid"](load(folder))
    assert set(table.frame["start"]) == {"as it is"}
    assert not any(note.startswith("Start 4-bit-native") for note in table.notes)


def test_restored_names_who_gets_recall_back_and_how_much_of_what_was_forgotten(data):
    (text,) = restored(data, TOFU, NATIVE, ["bnb-nf4"])
    start = data.values(TOFU, "untouched+nf4", "forget.value_recall")[0]
    before, after = (data.values(TOFU, "masc-full+nf4", "forget.value_recall", a) for a in ("none", "bnb-nf4"))
    rise = sum(after[s] - before[s] for s in before) / 3
    share = rise / (start - sum(before.values()) / 3)
    assert f"MASC (full) ({rise:+.3f}, {share:.0%} of what was forgotten)" in text
    assert "falls for none; no change beyond the spread for none." in text


def test_what_does_not_change_or_falls_is_not_called_restored(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc", "masc-full"], ladder=[])

    def change(frame):
        recall = (frame["metric"] == "forget.value_recall") & (frame["attack"] == "rtn4")
        frame.loc[recall & (frame["recipe"] == "masc"), "value"] = [0.0, 0.3, 0.6]
        frame.loc[recall & (frame["recipe"] == "masc-full"), "value"] = 0.01
        return frame

    edit(folder, "metrics.csv", change)
    plain = {"target": "target", "masc": "masc", "masc-full": "masc-full"}
    (text,) = restored(load(folder), TOFU, plain, ["rtn4"])
    assert "rises beyond the spread over seeds for none; falls for MASC (full) (-0." in text
    assert "no change beyond the spread for MASC (+0." in text


@pytest.mark.parametrize(("recall", "words"), [(0.95, "less than for SimNPO"), (0.0, "more than for SimNPO")])
def test_the_papers_order_of_rises_is_checked_against_ours(load, tmp_path, recall, words):
    folder = write_summary(tmp_path / "summary", recipes=["target", "simnpo", "masc"], ladder=[])

    def change(frame):
        rows = (frame["metric"] == "forget.value_recall") & (frame["attack"] == "bnb-fp4")
        frame.loc[rows & (frame["recipe"] == "simnpo"), "value"] = recall
        return frame

    edit(folder, "metrics.csv", change)
    (text,) = restored(load(folder), TOFU, {"target": "target", "simnpo": "simnpo", "masc": "masc"}, ["bnb-fp4"])
    assert "In the paper VerbMem rises more than MASC's for SimNPO; here" in text and text.endswith(f": {words}.")


def test_the_printed_changes_are_the_papers(data):
    news, books = printed_changes(data)
    assert "MUSE News" in news and news.endswith("RMU -5.38, SimNPO +29.55, MASC +4.69.")
    assert "MUSE Books" in books and "NPO+KLR +49.17" in books
