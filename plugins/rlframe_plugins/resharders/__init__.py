"""From two layouts to who sends which box to whom."""
