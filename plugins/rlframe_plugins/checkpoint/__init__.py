"""Weights from trainer to rollout engine, as numbered versions."""
