"""Numbers that no option can mean, for every registered method."""

from __future__ import annotations

import dataclasses
import math

import pytest

from rlframe.host.host import current_host
from rlframe.host.resolve import resolve


def numbers(name):
    """The class of options, and those that are floats."""
    made = resolve(current_host(), "algorithm", name).value.Config
    values = {one.name: getattr(made(), one.name) for one in dataclasses.fields(made)}
    return made, [option for option, value in values.items() if type(value) is float]


@pytest.mark.parametrize("name", current_host().components("algorithm"))
def test_no_option_takes_nan(name):
    made, options = numbers(name)
    assert "kl_coef" in options
    for option in options:
        with pytest.raises(ValueError, match=rf"\b{option}\b"):
            made(**{option: math.nan})


@pytest.mark.parametrize("option", ["samples_per_prompt", "epochs", "minibatch_prompts", "kl_coef"])
@pytest.mark.parametrize("name", current_host().components("algorithm"))
def test_no_count_or_weight_is_below_zero(name, option):
    made, _ = numbers(name)
    with pytest.raises(ValueError, match=f"^{option} "):
        made(**{option: -1})
