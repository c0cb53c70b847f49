"""Which changes the fast checksum shows, and the one that it says it does not."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe_plugins.transports.checksum import BLOCK, checksum


@pytest.fixture
def data():
    return np.random.default_rng(0).integers(0, 256, 3 * BLOCK + 1001, np.uint8)


@pytest.mark.parametrize("at", [0, 7, BLOCK - 1, BLOCK, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1000])
@pytest.mark.parametrize("bit", [1, 128])
def test_a_flipped_bit_shows_anywhere(data, at, bit):
    before = checksum(data)
    data[at] ^= bit
    assert checksum(data) != before


def test_blocks_that_trade_places_show(data):
    moved = data.copy()
    moved[:BLOCK], moved[BLOCK : 2 * BLOCK] = data[BLOCK : 2 * BLOCK], data[:BLOCK]
    assert checksum(moved) != checksum(data)


def test_it_goes_on_from_what_precedes(data):
    assert checksum(data[BLOCK:], checksum(data[:BLOCK])) == checksum(data)
    assert checksum(data.view(np.int8)) == checksum(data)


def test_words_that_trade_places_in_a_block_do_not_show(data):
    """So elements that a codec puts in their places have another check."""
    moved = data.copy()
    moved[:8], moved[8:16] = data[8:16], data[:8]
    assert checksum(moved) == checksum(data)
