"""Calls as HTTP: sending, sending again, and answers as values or exceptions.

Called by `_client`. A call that was cut may have arrived: only what is safe to repeat is sent again.

transport: the one place that sends calls, with its retries; http1: connections of an event loop; blocking_http1:
connections of threads; hang_up: ends calls that wait, and loses no answer; messages: requests as bytes, and
answers read as their bytes come, for both; answer_json: JSON of answers.
"""
