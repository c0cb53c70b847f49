"""The rollout ``openai``."""
