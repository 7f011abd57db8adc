"""Stages and traces for readers; nothing is computed here. Read in this order:

terminal     the walk at a terminal, with and without colour
serialize    manifests as JSON, and tensors as bytes
html         the walk as one HTML file
animation    the walk as an animated SVG
figures      attention maps as SVG, PNG or PDF
"""
