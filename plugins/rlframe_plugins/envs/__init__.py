"""What answers the policy."""
