"""What `import agentsched` costs: the gate is 0.3 s over an interpreter that imports nothing.

One operation is one fresh interpreter. Run it with `python -m benchmarks.micro.import_time`.
"""

import statistics
import subprocess
import sys
import time

RUNS = 11
ALLOWED_S = 0.3


def seconds(code: str) -> float:
    """Return how long an interpreter takes for a line of code."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> int:
    seconds("import agentsched")
    pairs = [(seconds("pass"), seconds("import agentsched")) for _ in range(RUNS)]
    bare = statistics.median(p for p, _ in pairs)
    added = statistics.median(i - p for p, i in pairs)
    print(f"import   {added:.3f} s over a bare interpreter ({bare:.3f} s), allowed {ALLOWED_S} s")
    return int(added > ALLOWED_S)


if __name__ == "__main__":
    sys.exit(main())
