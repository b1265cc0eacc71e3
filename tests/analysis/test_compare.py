from fnmatch import fnmatch

import pandas as pd
import pytest

from lethe.analysis.compare import TOLERANCES, Tolerance, compare_tables

TABLE = {
    "recipe": ["ga", "masc"], "1-forget.prob_mean": [0.60, 0.70], "1-forget.prob_std": [0.01, None],
    "1-forget.prob_paper": [0.829, 0.672], "time_cpu_s_mean": [2.0, 1.0], "n_seeds": [3, 1],
}  # fmt: skip


@pytest.fixture
def folders(tmp_path):
    """A function that writes the expected table and ours, changed, and returns both folders."""

    def write(change=lambda frame: frame, name="masc/table1.csv"):
        for side, frame in (("expected", pd.DataFrame(TABLE)), ("ours", change(pd.DataFrame(TABLE)))):
            path = tmp_path / side / name
            path.parent.mkdir(parents=True, exist_ok=True)
            frame.to_csv(path, index=False)
        return tmp_path / "ours", tmp_path / "expected"

    return write


def put(column, row, value):
    def change(frame):
        frame[column] = frame[column].astype(object)
        frame.loc[row, column] = value
        return frame

    return change


def test_equal_folders_do_not_differ(folders):
    assert compare_tables(*folders()) == []


@pytest.mark.parametrize(("value", "outside"), [(0.649, 0), (0.651, 1), (0.551, 0), (0.549, 1)])
def test_a_score_may_move_by_its_tolerance_and_no_further(folders, value, outside):
    assert len(compare_tables(*folders(put("1-forget.prob_mean", 0, value)))) == outside


def test_a_difference_names_file_row_column_and_both_numbers(folders):
    (found,) = compare_tables(*folders(put("1-forget.prob_mean", 1, 0.9)))
    assert str(found) == "masc/table1.csv masc 1-forget.prob_mean: expected 0.7, got 0.9"


def test_times_are_left_out(folders):
    assert compare_tables(*folders(put("time_cpu_s_mean", 0, 99.0))) == []


@pytest.mark.parametrize(("column", "value"), [("n_seeds", 2), ("1-forget.prob_paper", 0.83)])
def test_counts_and_printed_numbers_must_be_equal(folders, column, value):
    (found,) = compare_tables(*folders(put(column, 0, value)))
    assert found.column == column


def test_rows_are_matched_by_key_not_by_place(folders):
    assert compare_tables(*folders(lambda frame: frame.iloc[::-1])) == []


def test_a_lost_row_a_new_row_and_a_lost_column_are_told(folders):
    ours, expected = folders(lambda f: f.assign(recipe=["ga", "new"]).drop(columns="1-forget.prob_std"))
    found = [str(d) for d in compare_tables(ours, expected)]
    assert found == [
        "masc/table1.csv 1-forget.prob_std: expected present, got nothing",
        "masc/table1.csv masc: expected present, got nothing",
        "masc/table1.csv new: expected nothing, got present",
    ]


def test_a_cell_that_became_empty_is_told(folders):
    (found,) = compare_tables(*folders(put("1-forget.prob_mean", 0, None)))
    assert (found.expected, found.ours) == ("0.6", "nothing")


def test_files_of_one_side_only_are_told(folders):
    ours, expected = folders()
    (expected / "masc/table1.csv").rename(expected / "masc/table2.csv")
    assert [str(d) for d in compare_tables(ours, expected)] == [
        "masc/table1.csv: expected nothing, got present",
        "masc/table2.csv: expected present, got nothing",
    ]


def test_tolerances_can_be_given(folders):
    ours, expected = folders(put("1-forget.prob_mean", 0, 0.61))
    assert len(compare_tables(ours, expected, [Tolerance("*")])) == 1
    assert compare_tables(ours, expected, [Tolerance("*", relative=0.1)]) == []


@pytest.mark.parametrize(
    ("column", "allowed"), [("verbmem.forget_mean", 5), ("verbmem.forget_kept_mean", 0.05), ("forget.prob_mean", 0.05)]
)
def test_scores_of_a_hundred_have_room_of_their_own(column, allowed):
    tolerance = next(t for t in TOLERANCES if fnmatch(column, t.columns))
    assert (tolerance.absolute, tolerance.relative) == (allowed, 0)
