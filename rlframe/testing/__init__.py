"""Conformance kits: what every plugin must do, as tests that its author can run."""
