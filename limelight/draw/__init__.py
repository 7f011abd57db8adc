"""Captions become pictures, with the same Transformer. Read in this order:

scenes           what stands where, sampled without end; combinations held out
captions         scenes in plain English, with varied wording
image_files      pictures with captions from files, checked before they are decoded
shapes           coloured shapes as objects of scenes
emoji            emoji, or any small pictures, as objects of scenes
checker          shapes read back from pixels alone
png              pictures as files, and in terminals
image_tokenizer  pictures become tokens and come back: an autoencoder with FSQ
examples         captions and pictures as batches
check            what `limelight data check` says of pictures
sampling         a caption continued with image tokens: guidance, seeds, scores
drawing          what `limelight.load(RUN).draw(...)` returns
explanation      what each patch was chosen from, and what it attended to
evaluate         drawn for held-out captions, and judged
train            the image tokenizer, then the model, by the package's own loop
"""
