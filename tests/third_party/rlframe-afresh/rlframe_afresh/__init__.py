"""An engine and a scheduler."""
