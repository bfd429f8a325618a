"""A provider that speaks OpenAI's chat API and misbehaves on request. Nothing here knows the gateway."""
