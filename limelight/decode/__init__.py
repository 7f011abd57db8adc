"""Predictions become tokens. Read in this order:

config        all settings of decoding
request       requests, hypotheses, and a model as search sees it
simple        greedy and beam search without tricks: read this first
sampling      from logits to one token
constraints   phrases that must or must not appear
generate      greedy search and sampling for many requests at once
beam          the paper's beam search for many requests at once
alternatives  which other tokens were likely, and how they would have continued
ensemble      several models as one
detokenizer   tokens become text as they come
accel         optional speed for CPUs and GPUs
engine        many requests, batched by length and answered in order

Search sees a model only as `step(tokens, state) -> logits` and `state.select(rows)`, so it is
written once for Transformers and recurrent networks alike.
"""
