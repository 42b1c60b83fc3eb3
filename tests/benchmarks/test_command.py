"""The command of the bench says in one line what it cannot do."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("row nope hetero1 1", "argument workload: invalid choice: 'nope' (choose from 'chat', "),
        ("row rag nowhere 1", "argument fleet: invalid choice: 'nowhere' (choose from 'fleet64', "),
        ("row rag hetero1 0", "argument load: 0 is not a load above 0"),
        ("row rag hetero1 nan", "argument load: nan is not a load above 0"),
        ("row rag hetero1 1 --seeds 0", "argument --seeds: 0 is not a number from 1 to 999"),
        (
            "row rag hetero1 1 --arrivals x",
            "argument --arrivals: invalid choice: 'x' (choose from 'poisson', ",
        ),
        ("gates nope", "argument CLAIM: nope is not one of gap, parts, light, metrics, change, idle"),
        ("tune rag", "argument WORKLOAD/FLEET: rag is not one of chat, "),
        ("row tenants pair 1", "tenants/pair was never tuned: python -m benchmarks.policy tune tenants/pair"),
        ("row rag hetero1 2.5 --arrivals closed", "argument load: 2.5 queries cannot be in a closed loop"),
    ],
)
def test_what_cannot_be_played_is_refused(asked: str, said: str) -> None:
    command = [sys.executable, "-m", "benchmarks.policy", *asked.split()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0
    assert said in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
