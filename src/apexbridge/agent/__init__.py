"""The agent: the loop that turns messages into an answer, with tools and skills found on the way."""
