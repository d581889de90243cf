"""Speed and quality claims, measured: each prints its figure beside a baseline of the same run, and the ratio."""
