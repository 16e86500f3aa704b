"""Speech models: windows of audio, prompts, timestamps and segments on the decoding loop."""
