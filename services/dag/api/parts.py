"""The parts of one DAG process, put together: what the routes and the loops call."""

from __future__ import annotations

from services.dag.build.create import Builder
from services.dag.build.queue_registration import QueueRegistrar
from services.dag.build.subdags import SubDags
from services.dag.read.event_streams import Streams
from services.dag.read.explain import Explainer
from services.dag.read.export import Exporter
from services.dag.read.externals import Externals
from services.dag.read.queries import Queries
from services.dag.read.shard_health import ShardHealth
from services.dag.run.completions import Completer
from services.dag.run.context import Context
from services.dag.run.control import Controller
from services.dag.run.retry import Retrier
from services.dag.run.shared_values import SharedValues
from services.dag.schedules.schedules import Schedules
from services.dag.schedules.ticking import Ticker
from services.dag.workflows.awake import AwakeTurns
from services.dag.workflows.control import RunControl
from services.dag.workflows.nested import NestedRuns
from services.dag.workflows.reading import RunReader
from services.dag.workflows.rewriting import Rewriter
from services.dag.workflows.starting import Starter
from services.dag.workflows.turn_commits import TurnCommits


class Orchestrator:
    """All duties over one context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.registrar = QueueRegistrar(context)
        self.builder = Builder(context, self.registrar)
        self.completer = Completer(context)
        self.controller = Controller(context)
        self.retrier = Retrier(context)
        self.queries = Queries(context)
        self.shard_health = ShardHealth(context)
        self.values = SharedValues(context)
        self.ticker = Ticker(context, self.builder)
        self.schedules = Schedules(context, self.ticker)
        self.starter = Starter(context, self.builder)
        self.turns = AwakeTurns(context, TurnCommits(context, self.builder, self.starter))
        self.run_control = RunControl(context, self.controller)
        self.rewriter = Rewriter(context, self.run_control)
        nested = NestedRuns(context, self.completer, self.starter, self.run_control)
        self.sub_dags = SubDags(context, self.builder, self.completer, self.retrier, nested.carry)
        self.runs = RunReader(context)
        self.explainer = Explainer(context, self.queries)
        self.externals = Externals(context)
        self.streams = Streams(context)
        self.exporter = Exporter(context, self.queries)
