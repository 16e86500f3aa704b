"""Decoding: which inputs share a batch, the loop over steps, and what it yields.

Reading order: options, batching, logits_processors, greedy, outputs, results. The backend is behind
`backends.interface`; texts and speech are clients.
"""
