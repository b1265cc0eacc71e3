from collections.abc import Callable, Sequence

import pytest

from lethe.errors import LetheError
from lethe.unlearn.stopping import Budget, Probe, Verdict, ViolationStop


def stop(**settings) -> ViolationStop:
    defaults = {"alpha": 0.5, "every": 2, "trigger": 2, "confirm": 4, "budget": 10, "examples": 8}
    return ViolationStop(**{**defaults, **settings})


def rates(*values: float) -> Callable[[Sequence[int]], float]:
    """A measurement that returns these values in turn; a probe too many fails."""
    left = iter(values)
    return lambda rows: next(left)


def means_of(fractions: list[float]) -> Callable[[Sequence[int]], float]:
    return lambda rows: sum(fractions[i] for i in rows) / len(rows)


def probed_rows(rule: ViolationStop, step: int, batch: Sequence[int] = ()) -> list[list[int]]:
    asked: list[list[int]] = []

    def measure(rows: Sequence[int]) -> float:
        asked.append(list(rows))
        return 0.0

    rule.check(step, measure, batch)
    return asked


def test_a_rate_of_exactly_alpha_stops_and_one_above_goes_on():
    trigger, confirm = Probe(4, "trigger", 0.5, 2), Probe(4, "confirm", 0.5, 4)
    assert stop().check(4, rates(0.5, 0.5)) == Verdict("satisfied", (trigger, confirm))
    assert stop().check(4, rates(0.5, 0.51)) == Verdict(None, (trigger, Probe(4, "confirm", 0.51, 4)))


def test_a_mean_rounded_just_above_alpha_counts_as_alpha():
    assert (0.1 + 0.2) / 2 > 0.15
    assert stop(alpha=0.15, trigger=0, confirm=2).check(2, means_of([0.1, 0.2])).reason == "satisfied"


def test_a_trigger_above_alpha_measures_no_further():
    assert stop().check(4, rates(0.51)) == Verdict(None, (Probe(4, "trigger", 0.51, 2),))


def test_a_trigger_that_passes_does_not_stop_where_the_confirmation_fails():
    verdict = stop(confirm=5).check(4, means_of([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    assert verdict == Verdict(None, (Probe(4, "trigger", 0.0, 2), Probe(4, "confirm", 0.6, 5)))


def test_a_model_that_meets_alpha_before_the_first_step_is_already_satisfied():
    verdict = stop().check(0, rates(0.2, 0.3))
    assert verdict == Verdict("already-satisfied", (Probe(0, "trigger", 0.2, 2), Probe(0, "confirm", 0.3, 4)))


def test_step_zero_is_probed_and_goes_on_where_alpha_is_not_met():
    assert stop().check(0, rates(1.0)) == Verdict(None, (Probe(0, "trigger", 1.0, 2),))


def test_steps_between_probes_measure_nothing():
    assert stop().check(3, rates()) == Verdict(None, ())


def test_no_trigger_stage_leaves_the_papers_single_probe():
    assert stop(trigger=0).check(2, rates(0.4)) == Verdict("satisfied", (Probe(2, "confirm", 0.4, 4),))


@pytest.mark.parametrize(("step", "reason"), [(9, None), (10, "budget"), (11, "budget")])
def test_a_budget_that_runs_out_ends_the_run_without_success(step, reason):
    assert Budget(10).check(step) == Verdict(reason)
    assert stop().check(step, rates(0.9)).reason == reason


def test_meeting_alpha_at_the_last_step_of_the_budget_is_a_success():
    assert stop().check(10, rates(0.5, 0.5)).reason == "satisfied"


def test_a_violation_rate_that_is_not_a_number_does_not_stop():
    assert stop().check(4, rates(float("nan"))).reason is None


def test_the_first_step_that_meets_alpha_is_the_stop():
    falling, rule = {0: 1.0, 2: 0.8, 4: 0.5, 6: 0.1}, stop()
    reasons = {step: rule.check(step, lambda rows, s=step: falling[s]).reason for step in falling}
    assert next(step for step, reason in reasons.items() if reason) == 4


def test_leading_probes_take_the_first_rows_whatever_the_batch():
    assert probed_rows(stop(), step=4, batch=[0, 1]) == [[0, 1], [0, 1, 2, 3]]


def test_a_probe_has_no_more_rows_than_the_forget_set():
    verdict = stop(examples=3, confirm=32).check(2, rates(0.0, 0.0))
    assert [p.n for p in verdict.probes] == [2, 3]


def test_random_probes_are_distinct_rows_outside_the_batch():
    rule, seen = stop(rows="random", examples=20), set()
    for step in range(0, 200, 2):
        trigger, confirm = probed_rows(rule, step, batch=[3, 5])
        assert trigger == confirm[:2] and len(set(confirm)) == 4 and not {3, 5} & set(confirm)
        seen |= set(confirm)
    assert seen == set(range(20)) - {3, 5}


def test_random_probes_depend_on_seed_and_step_alone():
    rule = stop(rows="random", examples=100)
    assert probed_rows(rule, 4) == probed_rows(stop(rows="random", examples=100), 4)
    assert probed_rows(rule, 4) != probed_rows(rule, 6)
    assert probed_rows(rule, 4) != probed_rows(stop(rows="random", examples=100, seed=1), 4)


def test_a_batch_of_the_whole_forget_set_leaves_nothing_to_probe_at_random():
    with pytest.raises(LetheError, match="outside the batch, got all 8"):
        stop(rows="random").check(2, rates(), batch=range(8))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("alpha", 1.5), ("every", 0), ("trigger", -1), ("confirm", 0), ("budget", -1), ("examples", 0), ("rows", "last")],
)
def test_settings_without_a_meaning_are_refused(setting, value):
    with pytest.raises(LetheError, match=f"stop.{setting} must .*, got '?{value}"):
        stop(**{setting: value})
