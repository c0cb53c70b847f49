"""Which processes exist on which devices."""
