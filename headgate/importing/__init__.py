"""Graphs of other systems as DAGs: read from files, never run.

Each reader takes a file's text and gives a `Found`: a `Dag` and the list of what did not map, with where it
stands in the file. `left out` is information that is gone; `changed` is meaning: the DAG does not do what the
original did. `docs/importing.md` has the tables.

airflow, make, states, wfformat: a reader each; found: what they share.
"""

from headgate.importing.airflow import read_airflow
from headgate.importing.found import Fault, Found, Options, Unmapped
from headgate.importing.make import read_make
from headgate.importing.states import read_states
from headgate.importing.wfformat import read_wfformat

READERS = {"wfformat": read_wfformat, "make": read_make, "airflow": read_airflow, "states": read_states}

__all__ = ["READERS", "Fault", "Found", "Options", "Unmapped"]
