"""After something broke: the lives of a run, restarts, latecomers, stacks."""
