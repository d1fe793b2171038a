"""The commands about DAGs.

dags: one of them, or a list; explain: what it waits for; grow: graphs that grow; export: ended ones as JSON
lines; import_graph: those of other systems; submitting: a DAG on its way to the service; local_run (`dag run`)
with shell (its commands).
"""
