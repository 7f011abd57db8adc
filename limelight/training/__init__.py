"""Predictions become good. Read in this order:

config       all settings of a training
loss         cross-entropy with label smoothing, in chunks
loss_kernels  Triton kernels of it, for a GPU
fp8          its matrix products in numbers of 8 bits
objectives   the loss of each family on its batches
lr_schedule  the learning rate as a function of the step
optimizer    AdamW and Muon, frozen parts, gradient norm
optimizer_kernels  a Triton kernel of AdamW for bfloat16 weights
lora         adapters beside frozen linear layers
dropout      faster dropout on a CPU
fast_layers  kernels in place of modules on a GPU
layer_kernels  these Triton kernels: attention in short texts, post-norm residuals
activation_checkpointing  layers that compute again what they did not keep
tensor_parallel  layers divided among devices
distributed  one process or many: DDP, FSDP, tensor parallelism, and compilation
cuda_graph   steps captured and replayed on a GPU
console      the progress bar and lines on stderr
trainer      all parts of a training, and one optimizer step
evaluate     loss, perplexity and accuracy on texts not trained on
metrics      the log, throughput, loss spikes, NaN steps
checkpoint   what is saved, restored, averaged and finished
batch_size   the largest batch that fits
loop         fit(): steps, validations, checkpoints, signals
"""
