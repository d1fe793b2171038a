from tests.support.queue_fixtures import api, host, own_api, own_host

__all__ = ["api", "host", "own_api", "own_host"]
