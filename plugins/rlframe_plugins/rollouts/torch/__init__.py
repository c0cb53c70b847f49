"""The embedded engine: a hand-written decoder over the trainer's own weights."""
