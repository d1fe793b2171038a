"""A test suite on many workers: collected, run in parallel, flaky tests again, and reported as a whole."""

import subprocess
import sys
from dataclasses import dataclass

from headgate import App, Job

app = App("example-test-automation")

# What a real suite would find by `pytest --collect-only`: a test, and how it ends at its n-th attempt.
TESTS = {f"test_{n}": "pass" for n in range(40)} | {"test_flaky": "attempt > 1", "test_broken": "False"}


@dataclass
class Outcome:
    test: str
    passed: bool
    attempts: int


@app.job
def collect(pattern: str) -> list[str]:
    return [name for name in TESTS if pattern in name]


@app.job(max_attempts=3, backoff={"base_s": 0.05}, timeout_s=30, slots=4)
def run(job: Job, test: str) -> Outcome:
    body = TESTS[test]
    check = "" if body == "pass" else f"assert {body}"
    code = f"import time; time.sleep(0.1); attempt = {job.attempt}; {check}"
    passed = subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0
    if not passed and job.attempt < 3:
        raise AssertionError(f"{test} failed")
    return Outcome(test, passed, job.attempt)


@app.job
def report(outcomes: list[Outcome]) -> str:
    flaky = [one.test for one in outcomes if one.passed and one.attempts > 1]
    failed = [one.test for one in outcomes if not one.passed]
    return f"{len(outcomes)} tests, failed: {', '.join(failed) or 'none'}; flaky at least: {'test_flaky' in flaky}"


def main() -> None:
    flow = app.flow("test run")
    outcomes = flow.map(run, collect.call("test_"))
    last = flow.add(report.call(outcomes))
    print(flow.start().result(last, timeout_s=120))


if __name__ == "__main__":
    main()
