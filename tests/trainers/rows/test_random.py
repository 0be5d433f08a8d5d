"""Random numbers of objectives are uniform and independent, and depend only on seed, key, column and name."""

import numpy as np

from trainers.rows.random import uniforms


def test_numbers_depend_on_seed_key_column_and_name_alone():
    keys = np.array([5, 9, 5, 1 << 40, -1])
    values = uniforms(3, keys, 20, "mask")
    np.testing.assert_array_equal(values[0], values[2])
    np.testing.assert_array_equal(values[:, :7], uniforms(3, keys, 7, "mask"))
    np.testing.assert_array_equal(values[3:4], uniforms(3, keys[3:4], 20, "mask"))
    for other in (uniforms(4, keys, 20, "mask"), uniforms(3, keys, 20, "kind"), uniforms(3, keys + 1, 20, "mask")):
        assert not np.isin(values, other).any()


def test_numbers_are_even_and_neighbours_independent():
    values = uniforms(0, np.arange(1000), 1000, "x")
    assert ((values >= 0) & (values < 1)).all()
    counts = np.histogram(values, 100, (0, 1))[0]
    assert abs(counts - 10_000).max() < 6 * np.sqrt(10_000)  # six standard deviations
    for left, right in ((values[:, :-1], values[:, 1:]), (values[:-1], values[1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 6 / np.sqrt(left.size)
