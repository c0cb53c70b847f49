"""From a batch to losses: advantages, sampler mismatch, masks and denominators."""
