"""First-party plugins of rlframe."""
