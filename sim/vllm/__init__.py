"""The engine step of vLLM V1."""
