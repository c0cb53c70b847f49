"""How weights get from one pool to another."""
