"""Win rates, near numbers, and a second guess."""
