"""Text in, text out: what people do with a trained model.

Read in this order: `trained` (a model and what it can do), `sentences` (texts that are too long),
`translate`, `chat`, `write`, and for models that read both ways `fill`, `classify`, `embed`; last
`score`, how likely a model finds a text.
"""
