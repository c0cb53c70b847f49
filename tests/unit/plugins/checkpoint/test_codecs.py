from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlframe.errors import SyncError
from rlframe_plugins.codecs.delta import DeltaCodec
from rlframe_plugins.codecs.full import FullCodec


@given(
    st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]),
    st.integers(0, 3000),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_a_delta_gives_the_exact_elements_or_is_not_used(kind, count, rate, seed):
    random = np.random.default_rng(seed)
    base = random.integers(0, 200, count).astype(kind)
    new = base.copy()
    changed = random.random(count) < rate
    new[changed] += 1
    data = DeltaCodec().encode(new, base)
    if data is None:
        assert rate > 0.2 or count < 200
        return
    assert len(data) < new.nbytes
    found = DeltaCodec().decode(np.frombuffer(data, np.uint8), base)
    np.testing.assert_array_equal(found, new)
    assert not np.shares_memory(found, base)


def test_two_percent_of_bfloat16_cost_a_sixteenth_or_less():
    random = np.random.default_rng(0)
    base = random.integers(0, 2**16, 200_000).astype(np.uint16)
    new = base.copy()
    new[random.random(len(base)) < 0.02] ^= 1
    data = DeltaCodec().encode(new, base)
    assert data is not None
    assert len(data) < new.nbytes / 16


def test_nan_and_negative_zero_are_bits_like_others():
    base = np.array([0.0, 1.0, np.nan, 2.0] * 40, np.float32).view(np.uint32)
    new = base.copy()
    new[0] = np.float32(-0.0).view(np.uint32)
    data = DeltaCodec().encode(new, base)
    assert data is not None
    np.testing.assert_array_equal(DeltaCodec().decode(np.frombuffer(data, np.uint8), base), new)


@pytest.mark.parametrize("cut", [0, 5, -1])
def test_a_cut_delta_is_refused(cut):
    base = np.arange(100, dtype=np.uint32)
    new = base.copy()
    new[7] = 0
    data = DeltaCodec().encode(new, base)
    with pytest.raises(SyncError):
        DeltaCodec().decode(np.frombuffer(data[:cut], np.uint8), base)


def test_a_delta_of_a_longer_bucket_is_refused():
    base = np.arange(1000, dtype=np.uint32)
    new = base.copy()
    new[999] = 0
    data = DeltaCodec().encode(new, base)
    with pytest.raises(SyncError, match="beyond"):
        DeltaCodec().decode(np.frombuffer(data, np.uint8), base[:500])


def test_without_a_base_all_is_sent():
    assert DeltaCodec().encode(np.arange(4, dtype=np.uint16), None) is None
    assert FullCodec().encode(np.arange(4, dtype=np.uint16), None) is None
