"""Measures what cosines of a model mean, with pairs of texts that are known to be related."""

from collections.abc import Callable, Sequence

import numpy as np

from apexbridge.retrieval.embedders.model import Floats, Scale
from apexbridge.retrieval.text import has_cjk

RELATED_PAIRS = (
    ("commit my changes with a good message", "git commit: Creates git commits with conventional messages"),
    ("what will the weather be like tomorrow", "weather: Reports the weather forecast for a city"),
    ("make a chart out of this spreadsheet", "excel analysis: Reads Excel files and draws charts"),
    ("translate this letter into French", "translator: Translates text between languages"),
    ("find me a cheap flight to Rome", "flight search: Searches flights by price and date"),
    ("resize these photos", "image tools: Crops, resizes and converts pictures"),
    ("帮我写一封请假邮件", "邮件助手: 起草和发送电子邮件"),
    ("把这个文件转成PDF", "文档转换: 将文档转换为PDF格式"),
)
MIN_SCALE = 0.05
"""Least distance between related and unrelated, for a model that cannot distinguish them."""


def measure_scale(embed: Callable[[Sequence[str]], Floats], *, english_only: bool = False) -> Scale:
    """The typical cosines of a model."""
    pairs = [pair for pair in RELATED_PAIRS if not (english_only and has_cjk(pair[0]))]
    vectors = embed([text for pair in pairs for text in pair])
    cosines = vectors[0::2] @ vectors[1::2].T
    is_pair = np.eye(len(pairs), dtype=np.bool_)
    unrelated, related = float(cosines[~is_pair].mean()), float(cosines[is_pair].mean())
    return Scale(unrelated=unrelated, related=max(related, unrelated + MIN_SCALE))
