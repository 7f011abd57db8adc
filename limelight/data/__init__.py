"""Text becomes batches. Read in this order:

progress     a count on the terminal while something takes long
tokenizer    text becomes token ids and comes back, byte for byte
spans        where the tokens of a text stand in it
config       where examples come from: the [data] table of a recipe
input_files  folders, globs and archives become files; bytes become UTF-8
lines        lines of text, and what became of them: every rejected one is counted
tables       columns of .csv and .tsv become examples
readers      files become examples, whatever their format
questions    paragraphs with questions, made like the bAbI tasks
corpora      a split of a corpus: files, datasets of the hub, or a toy
download     downloads that resume
prepare      corpora made of raw files: books, conversations, splits
registry     public corpora by name (`corpora.toml`)
token_store  a corpus as integers on disk, tokenised once
bpe_dropout  tokens fall apart into the pieces they were merged from
masking      BERT's exercise
datasets     training examples of five kinds
packing      several pairs in a row
batching     examples of similar length become batches
check        what is wrong with a corpus
"""
