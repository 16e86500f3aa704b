"""Speech models: prompts, timestamps, windows of audio, and the front end that transcribes.

Reading order: prompts, timestamps, recording, plan, word_times, windows, journal, transcriber,
live.
"""
