"""A policy outside of training: validation, `rlframe eval` and its estimators, `rlframe chat`."""
