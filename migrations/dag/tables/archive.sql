-- Ended DAGs that retention has moved out of the hot tables: the same columns. Readers of an ended DAG read both.
CREATE TABLE kept_node (LIKE node INCLUDING DEFAULTS, PRIMARY KEY (no));
CREATE UNIQUE INDEX kept_node_key ON kept_node (dag_no, key);
CREATE TABLE kept_node_spec (LIKE node_spec INCLUDING DEFAULTS, PRIMARY KEY (node_no));
CREATE TABLE kept_edge (LIKE edge INCLUDING DEFAULTS, PRIMARY KEY (up, down));
CREATE INDEX kept_edge_down ON kept_edge (down, up);
CREATE TABLE kept_external (LIKE external INCLUDING DEFAULTS, PRIMARY KEY (dag_no, node_key, name));
CREATE INDEX kept_external_undeclared ON kept_external (dag_no, node_key, name) WHERE NOT declared;
CREATE TABLE kept_change (LIKE change INCLUDING DEFAULTS, PRIMARY KEY (dag_no, last_event));
-- One row for an ended DAG that retention has met. `due`: all its rows are in the hot tables; `moving`,
-- `thawing`: some are; `kept`: none is; `dropping`: its own row is gone, and what it had follows.
CREATE TABLE kept (
    dag_no bigint PRIMARY KEY,
    namespace text NOT NULL,
    finished_at timestamptz NOT NULL,
    phase text NOT NULL CHECK (phase IN ('due', 'moving', 'kept', 'thawing', 'dropping')),
    due_at timestamptz NOT NULL
);
CREATE INDEX kept_due ON kept (due_at) WHERE phase <> 'kept';
CREATE INDEX kept_old ON kept (finished_at, dag_no) WHERE phase = 'kept';
-- How far retention has read the ends, in their order; and up to which end each namespace is exported.
CREATE TABLE retention_mark (finished_at timestamptz NOT NULL, id uuid NOT NULL);
INSERT INTO retention_mark VALUES ('2000-01-01', '00000000-0000-0000-0000-000000000000');
CREATE TABLE export_mark (namespace text PRIMARY KEY, exported_until timestamptz NOT NULL);
