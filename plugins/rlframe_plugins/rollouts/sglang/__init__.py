"""The rollout ``sglang``."""
