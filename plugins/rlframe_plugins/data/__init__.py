"""Datasets by URI scheme."""
