"""Environments of the recipes, to run and to copy."""
