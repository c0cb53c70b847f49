"""Rollout engines: the embedded one, transformers' generate, and replay of a dumped run."""
