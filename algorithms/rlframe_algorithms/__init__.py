"""First-party algorithms of rlframe."""
