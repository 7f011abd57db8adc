"""The parts put together: what the commands do. Read in this order:

step_memory          what a training step allocates, on fake tensors
info                 parameters, FLOPs and memory of a model, counted without running it
plan                 what fits on many devices, what they send, how long a step takes
datasets             texts become tokens, and tokens batches for a family of models
preflight            checks before anything is made: the recipe, its data, the run folder
validation_decoding  samples, exact match and BLEU while a model trains
build                a recipe becomes a trainer, and begins its run folder
train                from a recipe to a trained model in a run folder
sweep                many trainings: all combinations of some settings
verify_resume        the proof that an interruption changes nothing
evaluate             the scores of a run, and the comparison of two
compare              many trainings side by side, by their logs
site                 walks through models as a static site
demo                 the tour of `limelight demo`
"""
