from __future__ import annotations

import pytest

from rlframe.errors import ConfigError
from rlframe.evaluating.answers import answer_of, answer_pattern


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        ("so it is 12", "12"),
        ("first 3, then 1,234.50!", "1234.5"),
        ("12.0", "12"),
        ("1200", "1200"),
        ("-0.0", "0"),
        ("a\n #### -7 \n", "-7"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}} done 9", r"\frac{1}{2}"),
        (r"\boxed{3", "3"),
        ("  Paris \n", "Paris"),
        ("", ""),
    ],
)
def test_usual_forms(response, wanted):
    assert answer_of(response) == wanted


def test_a_pattern_takes_the_last_match():
    pattern = answer_pattern(r"<a>(.*?)</a>")
    assert answer_of("<a>1</a> <a> 2.0 </a> 9", pattern) == "2"
    assert answer_of("nothing 9", pattern) == ""
    assert answer_of("x1 x2", answer_pattern(r"x\d")) == "x2"


def test_a_wrong_pattern_is_an_error():
    with pytest.raises(ConfigError, match=r"--answer '\('"):
        answer_pattern("(")
