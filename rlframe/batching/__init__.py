"""A batch from prompt to update: columns, packed blocks, the index over them, the update plan."""
