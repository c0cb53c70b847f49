"""Rollout engines behind HTTP: the client, and what such engines do alike."""
