"""How good is it? Strings and numbers come in, numbers come out. Read in this order:

tables        results on a terminal, in Markdown and on a page
metrics       what a score is; accuracy, F1, confusions, bits per byte
bleu          BLEU, chrF and TER by sacrebleu, and BLEU as the paper counted it
line_metrics  exact match, ROUGE and COMET, line by line
significance  is one run better than another, or is it chance?
outputs       outputs beside sources and references, as a file
report        scores and comparisons as JSON and as tables
"""
