"""From a user's function to the reward of an episode."""

from rlframe.rewards.function import FunctionReward
from rlframe.rewards.scorer import Scorer, WeightedReward, load_reward

__all__ = ["FunctionReward", "Scorer", "WeightedReward", "load_reward"]
