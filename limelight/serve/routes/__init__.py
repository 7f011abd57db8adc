"""The routes of the API. Read in this order:

openai   /v1: models, completions, chats, embeddings, for OpenAI's clients
api      /api: translations, suggestions, blanks, classes, scores, runs
trace    /api/trace and what belongs to it: one forward pass, number by number
"""
