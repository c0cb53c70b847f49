"""Stop strings, seeds and checks that every engine shares."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe.config import ModelConfig
from rlframe.errors import ModelError, RolloutError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request, Sampling
from rlframe.serving import (
    StopStrings,
    check_request,
    end_ids,
    load_config,
    load_tokenizer,
    seed_of,
)
from rlframe.testing.models import tiny_model
from rlframe.testing.tokenizers import char_tokenizer


class Pieces:
    """A tokenizer of byte pieces; incomplete UTF-8 decodes to U+FFFD, as real ones do."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def decode(self, ids, **_):
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")


def ends_at(tokenizer, strings, ids):
    stop = StopStrings(tokenizer, strings)
    for count in range(1, len(ids) + 1):
        if stop.completed_by_last(ids[:count]):
            return count
    return None


def test_a_string_over_several_tokens_ends_with_the_last_of_them():
    tokenizer = Pieces(b"the a", b"ns", b"wer</", b"ans", b"> more")
    assert ends_at(tokenizer, ("</ans>",), [0, 1, 2, 3, 4]) == 5
    assert ends_at(tokenizer, ("answer",), [0, 1, 2, 3, 4]) == 3
    assert ends_at(tokenizer, ("nothing", "ns"), [0, 1, 2, 3, 4]) == 2


def test_a_string_in_split_characters_is_found():
    tokenizer = Pieces(b"a\xc3", b"\xa9", b"b", "\u20ac".encode()[:1], "\u20ac".encode()[1:])
    assert ends_at(tokenizer, ("\u00e9",), [0, 1, 2]) == 2
    assert ends_at(tokenizer, ("\u00e9b",), [0, 1, 2]) == 3
    assert ends_at(tokenizer, ("b\u20ac",), [0, 1, 2, 3, 4]) == 5


def test_a_string_counts_once_at_the_token_that_completes_it():
    stop = StopStrings(Pieces(b"x", b"END", b"y"), ("END",))
    done = [stop.completed_by_last([0, 1, 2, 2, 1][:n]) for n in range(1, 6)]
    assert done == [False, True, False, False, True]


def test_a_long_response_is_searched_only_at_its_end():
    stop = StopStrings(Pieces(*[bytes([97 + i]) for i in range(26)]), ("xyz",))
    assert stop.completed_by_last([0] * 5000 + [23, 24, 25])
    assert not stop.completed_by_last([23, 24, 25] + [0] * 5000)


def test_seeds():
    one = Request((1, 2), Sampling(seed=7))
    assert seed_of(one, 0, 0) == seed_of(one, 1, 5)
    assert seed_of(one, 0, 0) != seed_of(Request((1, 2), Sampling(seed=8)), 0, 0)
    # The turns of an episode share its seed, but not its random numbers.
    assert seed_of(one, 0, 0) != seed_of(Request((1, 2, 3), Sampling(seed=7)), 0, 0)
    episodes = [Request((1,), group_id=-1, episode_id=i) for i in (-7, 3, 4)]
    assert len({seed_of(r, 0, 0) for r in episodes}) == 3
    assert seed_of(episodes[0], 0, 1) == seed_of(episodes[0], 0, 2) != seed_of(episodes[0], 1, 1)
    assert seed_of(Request((1,)), 0, 1) != seed_of(Request((1,)), 0, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_k", -1),
        ("min_p", 2.0),
        ("max_new_tokens", 0),
        ("min_new_tokens", 17),
        ("stop", ("",)),
        ("temperature", 1e-40),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", float("nan")),
        ("top_k", 10**30),
        ("top_k", 2.5),
        ("min_p", None),
        ("max_new_tokens", 10**30),
        ("max_new_tokens", 4.0),
        ("stop", "end"),
        ("stop", (b"end",)),
        ("seed", 0.5),
        ("stop_token_ids", (10,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", ("a",)),
    ],
)
def test_wrong_sampling_is_refused_by_name(name, value):
    with pytest.raises(RolloutError, match=name):
        check_request(Request((1,), Sampling(**{name: value})), 10, 10)


@pytest.mark.parametrize("prompt", [(1.0,), ("1",), (1, None), (True,)])
def test_a_prompt_is_of_token_ids(prompt):
    with pytest.raises(RolloutError, match="where a token id is due"):
        check_request(Request(prompt), 10, 10)


@pytest.mark.parametrize("deadline", [float("nan"), float("inf"), "soon"])
def test_a_deadline_is_a_number_of_seconds(deadline):
    with pytest.raises(RolloutError, match="deadline_s"):
        check_request(Request((1,), deadline_s=deadline), 10, 10)


def test_numbers_of_other_libraries_are_numbers():
    sampling = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), stop_token_ids=(9,))
    check_request(Request((np.int64(1), 2), sampling, deadline_s=-1.0), 10, 10)


def test_end_ids_are_those_of_model_and_tokenizer(tmp_path):
    tiny_model(tmp_path, eos_token_id=[5, 6])
    spec = RolloutSpec(str(tmp_path), ModelConfig(path=str(tmp_path)))
    assert end_ids(spec, load_config(spec)) == (5, 6)
    char_tokenizer(tmp_path)
    assert end_ids(spec, load_config(spec)) == (2, 5, 6)


def test_nothing_there_is_a_model_error(tmp_path):
    spec = RolloutSpec(str(tmp_path), ModelConfig(path="x"))
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_config(spec)
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_tokenizer(spec)
