"""The HTTP surface of the DAG service: requests are read and checked, one duty is called, its result is written.

Called by `app` alone. Nothing here changes state, so a crash loses at most an answer; callers repeat the call.

routes            DAGs and their nodes: create, add, read, control
routes_explain    what a DAG waits for; a node's life
routes_events     streams of a DAG's changes
routes_export     ended DAGs, for other stores
routes_subdags    children of running nodes, and DAGs within DAGs
routes_quotas     what a namespace may have of unfinished DAGs
routes_schedules  runs that begin at times
routes_workflows  runs of workflows, for people and for deciders
routes_values     values that the jobs of a DAG share
routing           what the routes share: paths, caller, namespace
verbs             what a program does with every DAG, also without the framework in between
intake            from wire models to the service's values; sizes are checked here
workflow_intake   workflows: what a turn asks for is judged here
schedule_intake   schedules: their times are judged, their runs planned
simple_intake     the same for nodes of the common shape, column by column
views             DAGs and nodes as callers see them
run_views         events as deciders see them
parts             the parts of one process, as routes and duties see them
"""
