"""Engines of others in a process of their own, which a worker starts, asks and ends."""
