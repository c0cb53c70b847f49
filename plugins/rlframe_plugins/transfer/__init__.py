"""Where batch columns lie."""
