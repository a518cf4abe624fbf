"""Do the nodes reach each other over the right interfaces, and over their fast fabric?"""

from __future__ import annotations

import ipaddress
import re

from envkit.knowledge.known import known
from envkit.verify.checks.nodes import all_went_well, by_node, listing, warned
from envkit.verify.facts import Fabric, Fact, Interface, RankFacts
from envkit.verify.outcome import Ranks, Result

GLOO = "HOROVOD_GLOO_RENDEZVOUS_ADDR"  # of ranks that Gloo brings together


def interface_named(ranks: Ranks) -> list[Result]:
    """Interfaces that variables name: are they on every node, and do they lead to other nodes?"""
    seen = [facts for facts in ranks.facts if facts.fabric and not facts.fabric.error]
    several = len(by_node(ranks)) > 1
    for facts in seen:
        interfaces = facts.fabric.interfaces if facts.fabric else ()
        for variable, kind in known("fabric")["variables"].items():
            value = facts.environment.get(variable)
            if not value or not (case := named(value, kind, interfaces, several=several)):
                continue
            names = ", ".join(described(interface) for interface in interfaces if routable(interface)) or "none"
            values = {"rank": facts.label, "variable": variable, "value": value, "names": names}
            return [warned(ranks.outcome("interface-named", case, **values), harmless=all_went_well(ranks))]
    return [ranks.outcome("interface-named", "pass")] if seen else []


def network_shared(ranks: Ranks) -> list[Result]:
    """Is there an IPv4 network that every node is in?"""
    nodes = {host: members[0].fabric for host, members in by_node(ranks).items()}
    fabrics = {host: fabric for host, fabric in nodes.items() if fabric and not fabric.error}
    if len(fabrics) < 2 or len(fabrics) < len(nodes):
        return []
    networks = {host: networks_of(fabric) for host, fabric in fabrics.items()}
    if isolated := [host for host, own in networks.items() if not own]:
        result = ranks.outcome("network-shared", "isolated", hosts=listing(isolated))
        return [warned(result, harmless=all_went_well(ranks))]
    shared = set.intersection(*networks.values())
    if shared:
        return [ranks.outcome("network-shared", "pass", networks=", ".join(sorted(shared)))]
    shown = "; ".join(f"{host}: {', '.join(sorted(own))}" for host, own in list(networks.items())[:4])
    return [warned(ranks.outcome("network-shared", "apart", shown=shown), harmless=all_went_well(ranks))]


def fabric_libraries(ranks: Ranks) -> list[Result]:
    """On several nodes with fast hardware: are the libraries there that use it? Of the MPI of a wheel, it is said."""
    nodes, by_mpi = by_node(ranks), ranks.expected.wheel_mpi and all(map(is_mpi, ranks.facts))
    only_tcp = [ranks.outcome("fabric-libraries", "tcp", mpi=ranks.expected.wheel_mpi)] if by_mpi else []
    if len(nodes) < 2:
        return only_tcp
    any_need = False
    for members in nodes.values():
        facts = members[0]
        if ranks.expected.wheel_mpi and (hardware := fast_hardware(facts.fabric)) and not is_nccl(facts):
            values = {"host": facts.host, "hardware": ", ".join(hardware.values()), "mpi": ranks.expected.wheel_mpi}
            return [ranks.outcome("fabric-libraries", "wheel", **values)]
        for need in known("fabric")["needs"]:
            if facts.fabric is None or facts.fabric.error or not applies(need, facts):
                continue
            any_need = True
            if not any(facts.fabric.libraries.get(name) for name in need["any"]):
                values = {"host": facts.host, "title": need["title"], "fix": need["remedy"]}
                names = " or ".join(need["any"])
                return [ranks.outcome("fabric-libraries", "missing", libraries=names, **values)]
    return only_tcp or ([ranks.outcome("fabric-libraries", "pass")] if any_need else [])


def nccl_network(ranks: Ranks) -> list[Result]:
    """Over what NCCL went, as it told itself; told apart only where there are several nodes."""
    heard = [facts for facts in ranks.facts if isinstance(facts.nccl_network, tuple) and facts.nccl_network]
    if not heard or len(by_node(ranks)) < 2:
        return []
    for facts in heard:
        network, line = told_network(facts)
        if network == "sockets" and (hardware := fast_hardware(facts.fabric)):
            values = {"rank": facts.label, "line": line, "hardware": ", ".join(hardware.values())}
            return [ranks.outcome("nccl-network", "sockets", **values)]
    network, _ = told_network(heard[0])
    return [ranks.outcome("nccl-network", "pass" if network else "untold", network=network)]


def named(value: str, kind: str, interfaces: tuple[Interface, ...], *, several: bool) -> str | None:
    """Return the fault of the interfaces that a variable names, or None; what excludes names is always right."""
    if kind == "prefixes" and value.startswith("^"):
        return None
    meant = [interface for interface in interfaces if is_meant(interface, value, kind)]
    if not meant:
        return "absent"
    return "own" if several and not any(routable(interface) for interface in meant) else None


def is_meant(interface: Interface, value: str, kind: str) -> bool:
    """Say whether a variable's value, read as its kind is, names an interface."""
    if kind == "prefixes":
        wanted = tuple(part for part in value.removeprefix("=").split(",") if part)
        return interface.name in wanted if value.startswith("=") else interface.name.startswith(wanted)
    wanted = tuple(value.split(",")) if kind == "list" else (value,)
    return any(interface.name == part or ("/" in part and within(part, interface)) for part in wanted)


def within(network: str, interface: Interface) -> bool:
    """Say whether the address of an interface is in a network; never where that is no network."""
    try:
        subnet = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
    return interface.address is not None and ipaddress.ip_address(interface.address) in subnet


def routable(interface: Interface) -> bool:
    """Whether other nodes may be behind it: up, with an address, and no loopback or bridge of this node's own."""
    own = interface.kind in {"loopback", "bridge"} or re.match(known("fabric")["unroutable"], interface.name)
    return interface.up and interface.address is not None and not own


def described(interface: Interface) -> str:
    """Return the name of an interface, with its address."""
    return f"{interface.name} ({interface.address})"


def networks_of(fabric: Fabric) -> set[str]:
    """Return the networks of a node that may lead to other nodes."""
    usable = [interface for interface in fabric.interfaces if routable(interface) and interface.mask]
    return {str(ipaddress.ip_interface(f"{interface.address}/{interface.mask}").network) for interface in usable}


def fast_hardware(fabric: Fabric | None) -> dict[str, str]:
    """The fast hardware of a node, by kind, with the devices' names."""
    if fabric is None or fabric.error:
        return {}
    active = [device.name for device in fabric.infiniband if device.active]
    pattern = known("fabric")["high_speed"]
    slingshot = [*fabric.cxi, *(interface.name for interface in fabric.interfaces if re.match(pattern, interface.name))]
    devices = {"infiniband": " ".join(active), "slingshot": " ".join(slingshot)}
    return {kind: names for kind, names in devices.items() if names}


def is_nccl(facts: RankFacts) -> bool:
    """Whether the collectives of training go by NCCL, and not by MPI."""
    return bool(facts.flags and facts.flags.nccl)


def is_mpi(facts: RankFacts) -> bool:
    """Whether they go by MPI."""
    flags = facts.flags
    return bool(flags and flags.mpi is True) and not is_nccl(facts) and GLOO not in facts.environment


def applies(need: dict[str, str], facts: RankFacts) -> bool:
    """Say whether a need of the catalogue concerns a rank: by its hardware, and by what Horovod was built with."""

    def built(flag: str) -> bool:
        return bool(facts.flags and facts.flags.get(flag))

    asked = "flag" not in need or built(need["flag"])
    excused = "unless" in need and built(need["unless"])
    return need["hardware"] in fast_hardware(facts.fabric) and asked and not excused


def told_network(facts: RankFacts) -> tuple[str, str]:
    """The network that NCCL told, and the line that tells it."""
    lines = () if isinstance(facts.nccl_network, Fact) else facts.nccl_network or ()
    for known_network in known("fabric")["networks"]:
        for line in lines:
            if re.search(known_network["pattern"], line):
                return str(known_network["name"]), line
    return "", ""


CHECKS = (interface_named, network_shared, fabric_libraries)
OF_NCCL = (nccl_network,)
