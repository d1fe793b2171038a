from tests.support.served import edge_database, port, served, talk_on

__all__ = ["edge_database", "port", "served", "talk_on"]
