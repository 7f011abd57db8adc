"""Requests and responses of the API: every field has a type and bounds. Read in this order:

common   bounds, sampling settings, errors and health
openai   completions, chats, embeddings: the fields of OpenAI's API
images   pictures for captions
api      translations, scores, models and runs
trace    traces and teacher forcing

Validation comes before any allocation. Unknown fields, numbers in quotes, NaN and lone surrogates
are rejected. Where `limits` sets a tighter bound, this one is the largest that can be configured.
"""
