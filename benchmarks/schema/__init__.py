"""The queue's table design against others that could have been, statement by statement and without HTTP.

Every variant has a schema of its own in one database, so that none leaves dead rows in another's way.
"""
