from tests.support.served import port, served, talk_on

__all__ = ["port", "served", "talk_on"]
