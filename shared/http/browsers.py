"""What a web page may not do with the browser of somebody who can reach a service.

Where no token is asked for, whoever can reach a port may use it, and a page that such a person opens sends
requests from that person's machine. Two ways lead from a foreign page to a service: a name of the page's own
whose address becomes the service's once the page is loaded (DNS rebinding), and forms or requests without
preflight (cross-site request forgery). The first shows in `Host`, the second in `Origin` and `Sec-Fetch-Site`,
which no page can set. A page does not know a token either, so a service with a tokens file looks at neither.

Starlette's TrustedHostMiddleware is not used: it answers in plain text, takes `[::1]:8080` for a host named `[`,
and knows no origins.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from shared.errors import CrossSite, UnknownHost, UnsupportedMedia
from shared.http.json_body import check_media
from shared.settings import EdgeSettings

_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
# Probes come by whatever address a machine has just now, and are told nothing that is anybody's.
_PROBES: Final = frozenset(("/livez", "/readyz"))
_OWN_SITES: Final = frozenset((b"same-origin", b"none"))
_PORTS: Final = {"http": 80, "https": 443}
# How many of its own names, with their ports, a service remembers to have been asked by.
_ASKED_MAX: Final = 100


class BrowserGuard:
    """Judges the heads of requests, by the names that the service has."""

    def __init__(self, settings: EdgeSettings) -> None:
        self._is_open = settings.tokens_file is None
        self._names = {name.strip().lower() for name in settings.host_names.split(",")} - {""}
        if _is_name(settings.host):
            self._names.add(settings.host.lower())
        self._asked: set[bytes] = set()

    def knows(self, host: bytes) -> bool:
        """Whether a `Host` field is one to be answered."""
        if not self._is_open or host in self._asked:
            return True
        if not self._is_own(_split(f"//{host.decode('latin-1')}")):
            return False
        if len(self._asked) < _ASKED_MAX:
            self._asked.add(host)
        return True

    def check(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Judge the head of a request that wants to be served.

        Raises:
            UnknownHost: by a name that is not the service's.
            CrossSite: it changes something, and another site's page has sent it.
            UnsupportedMedia: it changes something, and is such as a form sends, be it without a body.
        """
        given = dict(headers)
        hosts = [value for name, value in headers if name == b"host"]
        if path not in _PROBES and not all(map(self.knows, hosts)):
            raise UnknownHost(
                "the Host header names neither this machine (localhost, 127.0.0.1, [::1]) nor a name in "
                "HEADGATE_HOST_NAMES; set that for the service, or give it a tokens file"
            )
        if method in _SAFE:
            return
        site, origin = given.get(b"sec-fetch-site"), given.get(b"origin")
        if self._is_open and (_is_foreign(site) or (origin is not None and not self._is_same(origin, hosts))):
            raise CrossSite(
                "the request comes from a page of another origin; without tokens only calls of no page do"
            )
        media = given.get(b"content-type")
        if media is not None:
            check_media(media.decode("latin-1"))
        elif site is not None or origin is not None:
            raise UnsupportedMedia("send Content-Type: application/json, also without a body")

    def _is_same(self, origin: bytes, hosts: list[bytes]) -> bool:
        """Whether a page of that origin is the service's own: it has the `Host`, or a name that was set."""
        found = _split(origin.decode("latin-1"))
        if found is None:
            return False
        scheme, name, port = found
        if name in self._names:
            return True
        asked = [_split(f"{scheme}://{host.decode('latin-1')}") for host in hosts]
        return bool(asked) and all(host is not None and host[1:] == (name, port) for host in asked)

    def _is_own(self, found: tuple[str, str, int | None] | None) -> bool:
        if found is None:
            return False
        name = found[1]
        return name == "localhost" or name in self._names or _is_loopback(name)


def _is_foreign(site: bytes | None) -> bool:
    return site is not None and site.lower() not in _OWN_SITES


def _is_name(host: str) -> bool:
    """Whether what a service listens on names it: loopback is every service's, and `0.0.0.0` is no name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host != "localhost"
    return not (address.is_loopback or address.is_unspecified)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _split(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, name in lower case and port (the scheme's, if none is said) of an origin; None: it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.scheme, parts.hostname.rstrip("."), port
