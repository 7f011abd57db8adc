"""Text in, text out: what people do with a trained model. Read in this order:

text_model      a model with its tokenizer, and the tasks it can do
sentence_split  long texts become parts of whole sentences
glossary        how the terms of a source are to be translated
translate       a text in, its translation out; alternatives for every token
text_to_text    ask, paraphrase, summarise: what a tag selects
chat            the turns so far in, the next one out
write           a text is continued, piece by piece
fill            candidates for blanks (BERT)
classify        the probability of every class, and what each word does to it
embed           a text as a unit vector
search          the lines of files that are closest in meaning to a query
score           how likely a text is
"""
