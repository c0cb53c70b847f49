"""How weights are written on the wire."""
