"""The parts of one DAG process, put together: what the routes and the loops call."""

from __future__ import annotations

from services.dag.building import Builder
from services.dag.completing import Completer
from services.dag.context import Context
from services.dag.control import Controller
from services.dag.explaining import Explainer
from services.dag.exporting import Exporter
from services.dag.giving import Giver
from services.dag.queries import Queries
from services.dag.retrying import Retrier
from services.dag.streaming import Streams
from services.dag.subdags import SubDags
from services.dag.walking import Walker


class Orchestrator:
    """All duties over one context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.giver = Giver(context)
        self.builder = Builder(context, self.giver)
        self.completer = Completer(context)
        self.controller = Controller(context)
        self.retrier = Retrier(context)
        self.walker = Walker(context)
        self.sub_dags = SubDags(context, self.builder, self.completer, self.retrier)
        self.queries = Queries(context)
        self.explainer = Explainer(context, self.queries)
        self.streams = Streams(context)
        self.exporter = Exporter(context, self.queries)
