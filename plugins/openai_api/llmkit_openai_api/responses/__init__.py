"""``/v1/responses``: OpenAI's Responses API, kept in memory."""
