"""Worker of test_compiled.py: compiles the cases named on stdin.

python -m tests.kernels.compile < case-ids.json
"""

from dataclasses import asdict

from tests.kernels.aot import compile_case
from tests.kernels.cases import compiled, spilling
from tests.kernels.workers import serve


def main() -> None:
    cases = {case.id: case for case in [*compiled(False), *compiled(True), *spilling()]}
    serve(lambda case_id: asdict(compile_case(cases[case_id])))


if __name__ == "__main__":
    main()
