"""Pairs that belong together, to learn how an unknown model's cosines are to be read."""

from collections.abc import Callable, Sequence

import numpy as np

from apexbridge.retrieval.embedders.model import Floats, Scale

PAIRS = (
    ("commit my changes with a good message", "git commit: Creates git commits with conventional messages"),
    ("what will the weather be like tomorrow", "weather: Tells the weather forecast for a place"),
    ("make a chart out of this spreadsheet", "excel analysis: Reads Excel files and draws charts"),
    ("translate this letter into French", "translator: Translates text between languages"),
    ("find me a cheap flight to Rome", "flight search: Searches flights by price and date"),
    ("resize these photos", "image tools: Crops, resizes and converts pictures"),
    ("帮我写一封请假邮件", "邮件助手: 起草和发送电子邮件"),
    ("把这个文件转成PDF", "文档转换: 将文档转换为PDF格式"),
)
LEAST_REACH = 0.05
"""A model that tells nothing apart must not make everything look alike."""


def measured_scale(embed: Callable[[Sequence[str]], Floats]) -> Scale:
    """Cosines of the pairs, and of everything that is no pair."""
    vectors = embed([text for pair in PAIRS for text in pair])
    cosines = vectors[0::2] @ vectors[1::2].T
    together = np.eye(len(PAIRS), dtype=np.bool_)
    unrelated, related = float(cosines[~together].mean()), float(cosines[together].mean())
    return Scale(unrelated=unrelated, related=max(related, unrelated + LEAST_REACH))
