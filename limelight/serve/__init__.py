"""The HTTP service: models for programs, over the network, for many people at once.

Read in this order: `limits` (how much of everything), `frames` (how two processes talk), `journal`
(the log), `counts` (what /metrics shows), `traces`, `jobs` and `worker` (the child process that
holds a model and answers many requests at once), `desk` (the service's side of it: starts it,
feeds it, brings it back when it dies), `shapes` (what may be asked, and what is answered),
`tickets` (what a trace is called), `gate` (what every request must pass), `house` (all models),
`openai`, `own` and `inside` (the interfaces), `pages` and `files` (for people), `app` (all of it
together) and `server` (the process).

Only `traces`, `jobs` and `worker` know torch. The service itself never computes, so it answers at
once whatever the models are doing.
"""
