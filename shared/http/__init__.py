"""The edge of an HTTP service: connections, requests in, problem+json out.

Called by the `app` of both services. Limits of connections, heads and bodies are kept here, before any handler. It
holds no state of the product; a crash closes connections, and callers repeat.

serve        uvicorn, with the limits that it does not have
fast_http    a hot verb's request and answer without ASGI in between
head_cache   heads of requests that were read before on a connection
refusals     answers that are given before a request is whole, and what still comes of it
upgrades     who asks for another protocol is served in this one
hot_path     `/v1/namespaces/{ns}/{verb}` answered before the framework's stack
edge         bodies, errors, health and metrics for everything else
json_body    what every JSON body must be
nearest      unknown names are refused with the nearest known one
access       who calls, and what that allows
tokens       the file of callers' tokens
browsers     what a web page may not do in the browser of somebody who can reach a service
cursors      opaque cursors of lists
pages        the pages at `/ui`
timing       how long requests take, by route
draining     how a process goes while others stay
"""
