"""Strings become integers: tokenizer, corpora, store, batches, masking, in this order."""
