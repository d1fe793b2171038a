-- Named values of a DAG. `version` grows by one with each write. `writes` are the ids of the last writes, the
-- newest last: by them a write that is sent again is recognised. Rows stay when their DAG ends, and go with it.
CREATE TABLE dag_value (
    dag_no bigint NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    version bigint NOT NULL,
    writes uuid[] NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (dag_no, key)
);
-- How many values a DAG has, and their bytes. Its row is the lock of the DAG's values.
CREATE TABLE dag_value_use (
    dag_no bigint PRIMARY KEY,
    keys int NOT NULL,
    bytes bigint NOT NULL
);
