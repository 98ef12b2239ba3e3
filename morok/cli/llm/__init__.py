"""Commands on language models: chat, serve, bench-llm."""
