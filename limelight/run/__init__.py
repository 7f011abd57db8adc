"""The run folder, and the crash-safe commit behind it. Read in this order:

atomic          checkpoints: complete or absent, damage is noticed
log             what happened, one JSON object a line
folder          the files of a run
known_models    published models that can be fetched by name
bundled_models  the models that come with the package
loggers         the log for TensorBoard, Weights & Biases, MLflow
plots           the log as a figure
int8_storage    weights in a quarter of the bytes
weights         files of weights, checked before they are read
"""
