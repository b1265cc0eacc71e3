from hypothesis import given
from hypothesis import strategies as st

from lethe.data.text import Encoded
from lethe.unlearn.streams import Stream, generator


def examples(n):
    return [Encoded(list(range(2 + i % 5)), 1) for i in range(n)]


@given(n=st.integers(1, 40), size=st.integers(1, 9), seed=st.integers(0, 5))
def test_an_epoch_sees_every_row_once(n, size, seed):
    stream = Stream(examples(n), size, seed=seed, name="forget")
    rows = [row for step in range(stream.per_epoch) for row in stream[step]]
    assert sorted(rows) == list(range(n))
    assert all(len(stream[step]) == size for step in range(stream.per_epoch - 1))


def test_400_rows_in_batches_of_32_are_13_steps_an_epoch():
    assert Stream(examples(400), 32, seed=0, name="forget").per_epoch == 13


def test_a_batch_depends_on_seed_and_step_alone():
    first, second = (Stream(examples(30), 4, seed=3, name="retain") for _ in range(2))
    later = second[17]
    assert [first[step] for step in range(18)][-1] == later
    assert Stream(examples(30), 4, seed=4, name="retain")[17] != later


def test_epochs_differ_in_order():
    stream = Stream(examples(30), 30, seed=0, name="forget")
    assert stream[0] != stream[1] and sorted(stream[0]) == sorted(stream[1])


def test_replay_draws_new_rows_of_the_pool_every_epoch():
    stream = Stream(examples(30), 5, seed=0, name="retain", replay=5, replay_pool=20)
    assert stream.per_epoch == 3
    epochs = [sorted(row for s in range(3) for row in stream[3 * e + s]) for e in range(2)]
    assert all(rows[:10] == list(range(10)) and len(rows) == 15 for rows in epochs)
    assert epochs[0] != epochs[1]


def test_without_shuffling_rows_come_in_the_order_of_the_file():
    stream = Stream(examples(7), 3, seed=0, name="retain", shuffle=False)
    assert [stream[step] for step in range(4)] == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]


def test_generators_with_different_keys_differ():
    seeds = {
        generator(*key).initial_seed() for key in [(0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1), ("0", "a", 1)]
    }
    assert len(seeds) == 5
