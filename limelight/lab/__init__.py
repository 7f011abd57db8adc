"""The claims about attention, measured by anyone in minutes. Read in this order:

experiment  what an experiment is, and how one is run, interrupted and continued
report      results as Markdown, a page, figures and JSON
networks    the small networks that experiments compare, and how they are trained
distance    who finds one token far back, and who recalls many pairs? recurrent and attention
gradient    does learning reach back? the gradient by distance
induction   do two layers learn what one cannot? induction heads
length      is any length possible? positions beyond those of training, and the price
loop        what does a written token cost? with a cache, without, recurrent
parallel    is a whole text read at once? step time by length
scale       how does the loss fall with compute? a fitted law, and few-shot accuracy
scaling     why divide by sqrt(d_k)? scores at the start, and training without
catalog     the experiments, by name

Each experiment is a module: a question, a setting, measurements, a figure, and a conclusion that is
computed from the numbers. What contradicts a popular claim is reported as it is.
"""
