"""Mappers: which role lives on which devices, with which parallel sizes."""
