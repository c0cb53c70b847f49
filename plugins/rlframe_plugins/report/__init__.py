"""The sections of the page that ``rlframe report`` writes."""
