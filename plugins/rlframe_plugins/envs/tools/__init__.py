"""Environments that are plain classes: their public methods are the tools of a model."""
