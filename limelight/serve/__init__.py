"""The HTTP service: an OpenAI-compatible API, and one for everything inside a model.

Read in this order:

limits          bounds on everything a request may use
ipc             messages between the service and its workers
logs            the log: one JSON object per line
metrics         what /metrics shows
worker          the child process that holds a model and batches requests
errors          error responses, and validation errors as sentences
connection      one HTTP connection: bounds on time and size
worker_client   the service's side of a worker: start, jobs, restart
schemas         requests and responses
trace_token     names of traces
middleware      checks that every request passes
model_registry  the models by name, each with its workers
routes          the API
direct_routes   its short way for routes with a body
docs_pages      two plain pages: models, and the API reference
static          the page's files
app             all of it together
server          the process

Only `worker` imports torch. The service itself never computes, so it answers at once, whatever the
models do.
"""
