"""The state of a run on disk: whole or not there, checked before use, free of code."""
