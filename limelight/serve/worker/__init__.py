"""The child process that holds a model. Read in this order:

trace_cache   traces of a text, computed on demand
pictures      pictures for captions, patch by patch
sequences     the texts of a job: the tokens they ask for, and those that came
jobs          requests of clients, as sequences to generate and work to do
scheduler     all jobs at the same time, a token for each in turn
__main__      the process: loads the model, then reads and answers messages
"""
