"""Layers: packages that skills declare, installed once when an operator asks for it, then read-only.

A layer is built in a staging folder and appears by one rename, so it is always complete. The packages are untrusted:
installing them runs none of their code, and downloads nothing from outside the operator's index.
"""
