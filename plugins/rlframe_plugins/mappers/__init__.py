"""Which role lives in which pool."""
