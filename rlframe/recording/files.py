"""Names of the files in a run's folder that tools read."""

from __future__ import annotations

__all__ = ["CONFIG", "METRICS", "PLACEMENT", "SAMPLES", "SUMMARY", "TOKENS"]

CONFIG = "config.json"
METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
"""Written by the logger jsonl."""
PLACEMENT, SUMMARY, TOKENS = "placement.json", "summary.json", "tokens.jsonl"
