"""A serving benchmark's command as a scenario, and its result as what to hold a run against.

The one idea: a benchmark is a question (lengths, arrivals, a cap of requests in flight) and a truth (what was
measured); the question becomes a mix, and `kvcast run --against RESULT` puts the truth beside the answer.

    >>> print(as_toml(read_benchmark("vllm bench serve --dataset-name random --request-rate 4")))
"""

from kvcast.benchmarks.question import Question, as_toml, document_of
from kvcast.benchmarks.tools import read_benchmark

__all__ = ["Question", "as_toml", "document_of", "read_benchmark"]
