"""The claims about attention, measured by anyone in minutes. Read in this order:

timing      how long something takes on the best device
experiment  what an experiment is, and how one is run, interrupted and continued
report      results as Markdown, a page, figures and JSON
networks    the small networks that experiments compare, and how they are trained
subject     what some experiments examine: a run, or a recipe with its data
trainings   trainings of an experiment, each in a run folder
alignment   which word belongs to which: IBM Model 1
ablate      which parts of a Transformer matter? a table like the paper's Table 3
diagnose    is something wrong with a recipe or its data?
distance    who finds one token far back, and who recalls many pairs? recurrent and attention
duel        does a Transformer translate better than recurrent networks?
gradient    does learning reach back? the gradient by distance
heads       what do heads attend to, and what is each worth?
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
