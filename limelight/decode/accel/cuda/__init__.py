"""Decoding on a GPU. Read in this order:

runner             a model whose steps are CUDA graphs, and which slot a batch moves into
graph_slot         fixed memory for a batch, and the graphs that work on it
fused_model        a step in few kernels; keys and values that are never moved
device_beam        beam search on the device
attention_kernels  Triton: attention of one token
row_kernels        Triton: sums and norms, small products, top-k
"""
