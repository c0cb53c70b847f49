"""The rewards that rlframe ships."""
