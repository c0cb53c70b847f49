"""First-party templates of rlframe."""
