"""Strings become integers.

Read in this order: `tokenizer`, `config` (where texts come from), `readers` (files become
examples), `toys`, `corpora` (examples are judged), `fetch` and `named` (public ones), `store`
(tokenised once), `masking` (BERT's exercise), `examples` (what a model learns from), `batches`,
and last `mixups` and `doctor` (what is wrong with a corpus).
"""
