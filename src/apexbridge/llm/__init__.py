"""The model upstream: any server that speaks OpenAI's chat completions, with all its quirks."""
