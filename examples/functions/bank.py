"""Payments through a bank that takes ten calls a second, and says so when there are more: nobody pays twice."""

import asyncio
import tempfile
import time
from pathlib import Path

from headgate import App, Job, Retry

app = App("example-bank")
BANK = Path(tempfile.gettempdir()) / "headgate-bank"
PER_S = 10


class TooManyCalls(Exception):
    """What the bank answers with 429."""


def call_bank(reference: str, cents: int) -> None:
    """The bank: one file for each payment, and a folder for the calls of each second."""
    second = BANK / f"calls-{int(time.time())}"
    second.mkdir(parents=True, exist_ok=True)
    if len(list(second.iterdir())) >= PER_S:
        raise TooManyCalls
    (second / reference).touch()
    (BANK / f"{reference}.paid").write_text(str(cents))


@app.job(slots=4, max_attempts=10)
async def pay(job: Job, reference: str, cents: int) -> int:
    await asyncio.sleep(0.02)
    try:
        call_bank(reference, cents)  # the bank knows a reference that it has seen
    except TooManyCalls:
        raise Retry("the bank is busy", delay_s=1.0, costs_attempt=False) from None
    return cents


@app.job
async def total(payments: list[int]) -> int:
    return sum(payments)


def main() -> None:
    flow = app.flow("payday")
    paid = flow.chord([pay.call(f"salary-{number}", 100) for number in range(60)], total)
    cents = flow.start().result(paid, timeout_s=120)
    busiest = max(len(list(second.iterdir())) for second in BANK.glob("calls-*"))
    count = len(list(BANK.glob("*.paid")))
    print(f"paid {cents} cents in {count} payments; at most {PER_S} calls a second: {busiest <= PER_S}")


if __name__ == "__main__":
    main()
