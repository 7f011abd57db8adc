"""Predictions become good.

Read in this order: `config` (the settings), `device` (where it happens), `loss` (how wrong is a
prediction), `objective` (what each family is asked for), `schedule` and `optimizer` (how weights
move), `workers` (one process or many), `checkpoint` (what must survive), `fitting` (how
large a batch may be), `report` (what people see), and last `loop`, which puts them together.
"""
