"""What every connection to a shard is set to.

Plans are pinned because one made from an empty table's statistics costs more than any design choice:
generic plans, no sequential, hash, merge or bitmap plans (every statement is written for an index).
"""

PINNED = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}

SESSION = {
    "lock_timeout": "2s",
    "statement_timeout": "8s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "timezone": "UTC",
}


def session_of(schema: str, *, relaxed: bool) -> dict[str, str]:
    """What a connection to a shard is opened with. `relaxed` commits do not wait for the disk."""
    return {
        **PINNED,
        **SESSION,
        "search_path": schema,
        "synchronous_commit": "off" if relaxed else "on",
        "application_name": f"headgate {schema}",
    }
