from apexbridge.agent.token_count import IMAGE_TOKENS, MESSAGE_TOKENS, estimated_prompt_tokens


def test_texts_calls_and_tools_are_counted() -> None:
    text = {"role": "user", "content": "x" * 400}
    assert estimated_prompt_tokens([text], []) == 100 + MESSAGE_TOKENS
    assert estimated_prompt_tokens([text, text], []) == 2 * (100 + MESSAGE_TOKENS)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "y" * 400}}
    assert estimated_prompt_tokens([{"role": "assistant", "content": None, "tool_calls": [call]}], []) > 100
    assert estimated_prompt_tokens([text], [{"type": "function", "function": {"name": "z" * 400}}]) > 200


def test_an_image_counts_the_same_for_any_size() -> None:
    parts = [{"type": "text", "text": "x" * 4}, {"type": "image_url", "image_url": {"url": "data:" + "A" * 100_000}}]
    assert estimated_prompt_tokens([{"role": "user", "content": parts}], []) == 1 + IMAGE_TOKENS + MESSAGE_TOKENS
    assert estimated_prompt_tokens([{"role": "user", "content": [1, {"type": "file", "file": {}}]}], []) == 4
