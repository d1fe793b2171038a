"""Thirty days of a warehouse are computed anew, four at a time, each day once whoever asks for it again."""

import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

from headgate import App

app = App("example-backfill")
WAREHOUSE = Path(tempfile.gettempdir()) / "headgate-warehouse"
START, DAYS = date(2030, 1, 1), 30


@app.job(slots=4, max_attempts=5, backoff={"base_s": 0.1})
def partition(day: date) -> int:
    time.sleep(0.1)
    rows = day.toordinal() % 1_000
    part = WAREHOUSE / f"{day}.part"
    part.write_text(str(rows))
    part.rename(WAREHOUSE / f"{day}.csv")  # whole, or not at all
    return rows


@app.job
def total(rows: list[int]) -> int:
    return sum(rows)


def main() -> None:
    WAREHOUSE.mkdir(exist_ok=True)
    flow = app.flow("backfill")
    days = [START + timedelta(days=number) for number in range(DAYS)]
    rows = flow.chord([partition.call(day) for day in days], total)
    run = flow.start(key=f"{START}/{DAYS}")  # asked for again, it is the same run
    again = flow.start(key=f"{START}/{DAYS}")
    found = run.result(rows, timeout_s=120)
    files = len(list(WAREHOUSE.glob("*.csv")))
    print(f"{found} rows in {files} days; asked twice, run once: {run.id == again.id}")


if __name__ == "__main__":
    main()
