"""Calling groups of workers: protocols as data, fan-out, the worker itself, waiting."""
