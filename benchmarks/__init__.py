"""Speed and quality claims, measured: each prints its figure beside a baseline of the same run, and the ratio."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `apex` does; before numpy is imported
