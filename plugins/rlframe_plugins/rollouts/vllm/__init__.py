"""The rollout ``vllm``: an engine in processes of its own, or servers that run elsewhere."""
