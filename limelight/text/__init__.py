"""Strings become integers.

Read in this order: `tokenizer`, `corpora` (files become examples), `fetch` (files from elsewhere),
`named` (public corpora), `store` (tokenised once), `batches`, `masking` (BERT's exercise), and last
`doctor` (what is wrong with a corpus).
"""
