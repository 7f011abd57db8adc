"""How good is it? Scores of what a model wrote, and whether one run is better than another.

There is no model in here: strings and numbers come in, numbers come out. Read in this order:
`measure` (what a score is), `language` (surprise), `labels` (classes), `translation` (BLEU, chrF,
TER), `wmt14` (BLEU as the paper counted it), `compare` (two runs), `report` (all of it as data and
as a table).
"""
