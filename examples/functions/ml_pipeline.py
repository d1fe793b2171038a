"""A model is trained with several settings at once; the best one is published if it is good enough."""

import random
import time
from dataclasses import dataclass
from typing import NamedTuple

from headgate import App

app = App("example-ml-pipeline")


class Settings(NamedTuple):
    rate: float
    epochs: int


@dataclass
class Model:
    settings: Settings
    weight: float
    error: float


@app.job
def prepare(seed: int, count: int) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [(x, 3 * x + chance.gauss(0, 0.1)) for x in (chance.random() for _ in range(count))]


@app.job(slots=4, max_attempts=5, timeout_s=60)
def train(settings: Settings, data: list[tuple[float, float]]) -> Model:
    weight = 0.0
    for _ in range(settings.epochs):
        time.sleep(0.01)
        weight -= settings.rate * sum(2 * x * (weight * x - y) for x, y in data) / len(data)
    return Model(settings, weight, sum((weight * x - y) ** 2 for x, y in data) / len(data))


@app.job
def best(models: list[Model]) -> Model:
    return min(models, key=lambda one: one.error)


@app.job
def publish(model: Model) -> str:
    return f"published a weight of {model.weight:.1f}"


def main() -> None:
    flow = app.flow("training")
    data, grid = prepare.call(7, count=200), [Settings(r, n) for r in (0.01, 0.1, 0.5) for n in (10, 40)]
    chosen = best.call([train.call(settings, data) for settings in grid])
    last = flow.add(publish.call(chosen), when=chosen.value["error"] < 0.05)
    print(flow.start().result(last, timeout_s=120))


if __name__ == "__main__":
    main()
