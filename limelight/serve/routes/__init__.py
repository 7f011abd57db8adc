"""The routes of the API. Read in this order:

event_stream   messages of a worker as server-sent events
openai         /v1: models, completions, chats, embeddings, for OpenAI's clients
images         /v1/images and /api/draw: pictures for captions
api            /api: translations, suggestions, blanks, classes, scores, runs
trace          /api/trace and what belongs to it: one forward pass, number by number
"""
