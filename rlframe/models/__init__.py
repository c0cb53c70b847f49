"""Model folders: where they lie, what their config says, GGUF files made readable."""
