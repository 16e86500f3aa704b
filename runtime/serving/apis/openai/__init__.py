"""OpenAI's API: models, audio, embeddings, completions."""
