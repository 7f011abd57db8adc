"""One text through your own model, stage by stage; every number is the model's. Read in this order:

tokens          tokens in a form that people can read
traced_text     the text, and what the model generates after it
trace           the forward pass once more, with every value recorded
interventions   changes inside the model: a head off, a token hidden, a value copied
comparison      the unchanged and the changed model on the same text
stage_table     the stages of the walk: names, titles, families, and what each depends on
stage           one stage as data: a sentence, formulas, figures and checks
gradient        the loss of the text, its gradient, and one step along it
focus           the chosen layer, head and word, and the values there
starting_point  the layer, head and words with a large weight between words
stages          the stages themselves
render          terminal, JSON, HTML and figures
explanation     the result of `limelight.load(RUN).explain(TEXT)`
"""
