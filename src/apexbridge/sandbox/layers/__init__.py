"""Layers: packages that skills declare, installed once by an operator's word and read-only ever after.

A layer is built in a staging folder and appears by one rename, so what is found is whole. The packages are from
strangers: installing them runs none of their code, and takes nothing from outside the operator's index.
"""
