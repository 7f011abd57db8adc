"""One text through your own model, station by station; every number is the model's.

Read in this order: `words` (tokens as people meet them), `passage` (the model writes), `trace` (all
of it once more, with every value), `origins` (what each value is made of), `stop` (a station as
data), `view` (where somebody looks), then the stations: `entering`, `attending`, `layering`,
`writing`, `aside`; `walk` puts them in order. `terminal`, `figures` and `manifest` only draw and
carry what is there.
"""
