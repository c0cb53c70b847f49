"""The loggers that rlframe ships."""
