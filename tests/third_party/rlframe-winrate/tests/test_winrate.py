"""rlframe's kits over what this package offers."""

from __future__ import annotations

from rlframe_winrate.environment import Warmer
from rlframe_winrate.reward import Near

from rlframe.testing import AlgorithmKit, EnvironmentKit, PluginKit, RewardKit


class TestPackage(PluginKit):
    distribution = "rlframe-winrate"


class TestWinRate(AlgorithmKit):
    name = "win-rate"


class TestWithOptions(AlgorithmKit):
    name = "win-rate"
    options = {"clip_ratio": 0.4, "kl_coef": 0.02, "samples_per_prompt": 4}


class TestNear(RewardKit):
    columns = {"prompt": "1+1=", "answer": "12"}
    cases = (("12", 1.0), ("it is 22", 0.5), ("none", 0.0), ("", 0.0))
    needs = ("answer",)

    def make(self):
        return Near()


class TestWarmer(EnvironmentKit):
    columns = {"prompt": "what", "answer": "12"}
    replies = ("7", "12")

    def make(self, tokenizer):
        return Warmer(Warmer.Config(turns=3, higher="up", lower="down"), tokenizer)

    def test_it_says_in_which_direction(self):
        episode, policy = self._play(replies=("7", "13", "12"))
        said = [i for i, mask in enumerate(episode.segments[0].response_mask) if not mask]
        told = self.tokenizer.decode([episode.segments[0].response_ids[i] for i in said])
        assert (len(policy.asked), told, episode.text) == (3, "updown", "12")
        assert episode.figures == {"guesses": 3.0}
