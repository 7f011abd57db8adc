"""Predictions become tokens.

Read in this order: `config` (how to write, as data), `request` (what is asked for, and what comes
out), `choose` (from scores to one token), `phrases` (words that must or must not appear), `write`
(greedy and sampling, token by token), `beam` (the paper's search), `alternatives` (what else could
have come here), `ensemble` (several models as one), `stream` (tokens as text, as they come), and
last `engine` (many texts, fast and in order).

All of it sees a model only as `step(tokens, state) -> logits` and `state.select(rows)`, so it is
written once for Transformers and recurrent networks alike.
"""
