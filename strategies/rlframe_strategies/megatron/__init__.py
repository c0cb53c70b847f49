"""Strategy ``megatron``: megatron-core's GPT model behind rlframe's names."""
