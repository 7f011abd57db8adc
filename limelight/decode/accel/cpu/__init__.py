"""Decoding on a CPU. Read in this order:

model                   the layers again, for one token in every row
kv_cache                keys and values of all rows, and of each source once
linear                  products of a few rows
folded_cross_attention  one source: its keys and values multiplied into the weights
huge_pages              memory in pages of 2 MB, used again
"""
