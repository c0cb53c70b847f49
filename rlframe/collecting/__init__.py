"""From prompts to accepted groups: the collector, its controller side, the buffer that waits."""
