"""Do the nodes reach each other over the right interfaces, and over their fast fabric?"""

from __future__ import annotations

import ipaddress
import re

from envkit.knowledge.known import known
from envkit.verify.checks.nodes import all_went_well, by_node, listing, warned
from envkit.verify.facts import Fabric, Fact, Interface, RankFacts
from envkit.verify.outcome import Ranks, Result


def interface_named(ranks: Ranks) -> list[Result]:
    """Interfaces that variables name: are they on every node, and do they lead to other nodes?"""
    seen = [facts for facts in ranks.facts if facts.fabric and not facts.fabric.error]
    several = len(by_node(ranks)) > 1
    for facts in seen:
        interfaces = facts.fabric.interfaces if facts.fabric else ()
        for variable, kind in known("fabric")["variables"].items():
            value = facts.environment.get(variable)
            if not value or not (case := _named(value, kind, interfaces, several=several)):
                continue
            names = ", ".join(_described(one) for one in interfaces if _routable(one)) or "none"
            values = {"rank": facts.label, "variable": variable, "value": value, "names": names}
            return [warned(ranks.outcome("interface-named", case, **values), harmless=all_went_well(ranks))]
    return [ranks.outcome("interface-named", "pass")] if seen else []


def network_shared(ranks: Ranks) -> list[Result]:
    """Is there an IPv4 network that every node is in?"""
    nodes = {host: members[0].fabric for host, members in by_node(ranks).items()}
    fabrics = {host: fabric for host, fabric in nodes.items() if fabric and not fabric.error}
    if len(fabrics) < 2 or len(fabrics) < len(nodes):
        return []
    networks = {host: _networks(fabric) for host, fabric in fabrics.items()}
    if isolated := [host for host, found in networks.items() if not found]:
        result = ranks.outcome("network-shared", "isolated", hosts=listing(isolated))
        return [warned(result, harmless=all_went_well(ranks))]
    shared = set.intersection(*networks.values())
    if shared:
        return [ranks.outcome("network-shared", "pass", networks=", ".join(sorted(shared)))]
    shown = "; ".join(f"{host}: {', '.join(sorted(found))}" for host, found in list(networks.items())[:4])
    return [warned(ranks.outcome("network-shared", "apart", shown=shown), harmless=all_went_well(ranks))]


def fabric_libraries(ranks: Ranks) -> list[Result]:
    """On several nodes with fast hardware: are the libraries there that use it?"""
    nodes = by_node(ranks)
    if len(nodes) < 2:
        return []
    asked = False
    for members in nodes.values():
        facts = members[0]
        if ranks.expected.wheel_mpi and (hardware := _hardware(facts.fabric)) and not _is_nccl(facts):
            values = {"host": facts.host, "hardware": ", ".join(hardware.values()), "mpi": ranks.expected.wheel_mpi}
            return [ranks.outcome("fabric-libraries", "wheel", **values)]
        for need in known("fabric")["needs"]:
            if facts.fabric is None or facts.fabric.error or not _applies(need, facts):
                continue
            asked = True
            if not any(facts.fabric.libraries.get(name) for name in need["any"]):
                values = {"host": facts.host, "title": need["title"], "fix": need["remedy"]}
                names = " or ".join(need["any"])
                return [ranks.outcome("fabric-libraries", "missing", libraries=names, **values)]
    return [ranks.outcome("fabric-libraries", "pass")] if asked else []


def nccl_network(ranks: Ranks) -> list[Result]:
    """Over what NCCL went, as it told itself; told apart only where there are several nodes."""
    heard = [facts for facts in ranks.facts if isinstance(facts.nccl_network, tuple) and facts.nccl_network]
    if not heard or len(by_node(ranks)) < 2:
        return []
    for facts in heard:
        network, line = _network(facts)
        if network == "sockets" and (hardware := _hardware(facts.fabric)):
            values = {"rank": facts.label, "line": line, "hardware": ", ".join(hardware.values())}
            return [ranks.outcome("nccl-network", "sockets", **values)]
    network, _ = _network(heard[0])
    return [ranks.outcome("nccl-network", "pass" if network else "untold", network=network)]


def _named(value: str, kind: str, interfaces: tuple[Interface, ...], *, several: bool) -> str | None:
    """What is wrong with the interfaces that a variable names, or None; what excludes names is always right."""
    if kind == "prefixes" and value.startswith("^"):
        return None
    meant = [one for one in interfaces if _is_meant(one, value, kind)]
    if not meant:
        return "absent"
    return "own" if several and not any(_routable(one) for one in meant) else None


def _is_meant(interface: Interface, value: str, kind: str) -> bool:
    if kind == "prefixes":
        wanted = tuple(part for part in value.removeprefix("=").split(",") if part)
        return interface.name in wanted if value.startswith("=") else interface.name.startswith(wanted)
    wanted = tuple(value.split(",")) if kind == "list" else (value,)
    return any(interface.name == part or ("/" in part and _within(part, interface)) for part in wanted)


def _within(network: str, interface: Interface) -> bool:
    try:
        asked = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
    return interface.address is not None and ipaddress.ip_address(interface.address) in asked


def _routable(interface: Interface) -> bool:
    """Whether other nodes may be behind it: up, with an address, and no loopback or bridge of this node's own."""
    own = interface.kind in {"loopback", "bridge"} or re.match(known("fabric")["unroutable"], interface.name)
    return interface.up and interface.address is not None and not own


def _described(interface: Interface) -> str:
    return f"{interface.name} ({interface.address})"


def _networks(fabric: Fabric) -> set[str]:
    usable = [one for one in fabric.interfaces if _routable(one) and one.mask]
    return {str(ipaddress.ip_interface(f"{one.address}/{one.mask}").network) for one in usable}


def _hardware(fabric: Fabric | None) -> dict[str, str]:
    """The fast hardware of a node, by kind, with the devices' names."""
    if fabric is None or fabric.error:
        return {}
    active = [device.name for device in fabric.infiniband if device.active]
    pattern = known("fabric")["high_speed"]
    slingshot = [*fabric.cxi, *(one.name for one in fabric.interfaces if re.match(pattern, one.name))]
    found = {"infiniband": " ".join(active), "slingshot": " ".join(slingshot)}
    return {kind: names for kind, names in found.items() if names}


def _is_nccl(facts: RankFacts) -> bool:
    """Whether the collectives of training go by NCCL, and not by MPI."""
    return bool(facts.flags and facts.flags.nccl)


def _applies(need: dict[str, str], facts: RankFacts) -> bool:
    def built(flag: str) -> bool:
        return bool(facts.flags and facts.flags.get(flag))

    asked = "flag" not in need or built(need["flag"])
    excused = "unless" in need and built(need["unless"])
    return need["hardware"] in _hardware(facts.fabric) and asked and not excused


def _network(facts: RankFacts) -> tuple[str, str]:
    """The network that NCCL told, and the line that tells it."""
    lines = () if isinstance(facts.nccl_network, Fact) else facts.nccl_network or ()
    for known_network in known("fabric")["networks"]:
        for line in lines:
            if re.search(known_network["pattern"], line):
                return str(known_network["name"]), line
    return "", ""


CHECKS = (interface_named, network_shared, fabric_libraries)
OF_NCCL = (nccl_network,)
