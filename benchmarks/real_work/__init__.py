"""Real work over `/v1/chat/completions`: a scripted model follows the instructions of skills, and other libraries open
the files that it made.

Needs the package indexes of Python and npm: the bundles, the packages of the skills and the libraries that check the
results are installed for the run.
"""

from benchmarks.real_work.work import run

__all__ = ["run"]
