"""Public addresses: where requests of callers, and redirects of other hosts, may lead."""

from __future__ import annotations

import ipaddress

IP = ipaddress.IPv4Address | ipaddress.IPv6Address

# Prefixes whose last 32 bits are an IPv4 address: IPv4-compatible (RFC 4291), translated (RFC 2765), NAT64 (RFC 6052).
_WITH_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
_NAT64_OF_A_SITE = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215


def ip_address(text: str) -> IP | None:
    """Return the address that a host is written as, the IPv4 one where it leads to one; None when it is a name."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address) or address in (ipaddress.IPv6Address(0), ipaddress.IPv6Address(1)):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and any(address in network for network in _WITH_IPV4):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address


def is_public(address: IP) -> bool:
    """Return whether an address, as `ip_address` returns it, is routed in the public internet."""
    if isinstance(address, ipaddress.IPv6Address) and (address.is_site_local or address in _NAT64_OF_A_SITE):
        return False
    return address.is_global and not address.is_multicast
