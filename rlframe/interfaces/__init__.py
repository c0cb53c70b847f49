"""The abstract parts of rlframe: what a plugin implements. One concern, one owner."""
