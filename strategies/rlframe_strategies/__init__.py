"""First-party strategies of rlframe."""
