"""Tool-call parsers: the forms in which models write calls."""
