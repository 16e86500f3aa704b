"""OpenAI's API: models, embeddings, completions, audio."""
