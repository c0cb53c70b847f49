"""Where every element of the weights lies, and how it gets from one layout to another."""
