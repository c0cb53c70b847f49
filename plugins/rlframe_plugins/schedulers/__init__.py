"""When the stages of a step run."""
