"""Arithmetic on text: tokens, a program in postfix order, and exact numbers, each step bounded before it is taken."""
