from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envkit.inside.probe import machine, nccl
from envkit.verify.checks import fabric as checks
from envkit.verify.facts import Collectives, Ended, Fabric, Flags, Interface, RankFacts, RdmaDevice, World
from envkit.verify.outcome import Expected, Ranks, Result, Status


def card(name: str, address: str | None, *, kind: str = "physical", up: bool = True) -> Interface:
    return Interface(name=name, kind=kind, up=up, address=address, mask="255.255.255.0" if address else None)


LOOPBACK = card("lo", "127.0.0.1", kind="loopback")
DOCKER = card("docker0", "172.17.0.1", kind="bridge")
LIBRARIES: dict[str, str | None] = {"libibverbs.so.1": "/etc/ld.so.cache", "libcxi.so.1": None, "libnccl-net.so": None}
INFINIBAND = (RdmaDevice(name="mlx5_0", active=("InfiniBand",)),)


def rank(number: int, *interfaces: Interface, **facts: Any) -> RankFacts:
    """A rank that went well, each on a node of its own, with eth0 in one network."""
    usual = (LOOPBACK, DOCKER, card("eth0", f"10.0.0.{number + 1}"))
    stated = {
        "ended": Ended(how="exit", status=0),
        "world": World(rank=number, size=2),
        "collectives_cpu": Collectives(),
        "fabric": Fabric(interfaces=interfaces or usual, libraries=LIBRARIES),
    }
    return RankFacts(framework="torch", host=f"node{number + 1}", pid=1, phase="exit", **{**stated, **facts})


def results(*facts: RankFacts, wheel_mpi: str = "") -> dict[str, Result]:
    expected = Expected(size=len(facts), frameworks=("torch",), wheel_mpi=wheel_mpi)
    ranks = Ranks(framework="torch", facts=facts, expected=expected)
    every = (checks.interface_named, checks.network_shared, checks.fabric_libraries, checks.nccl_network)
    return {result.id: result for check in every for result in check(ranks)}


def test_two_nodes_in_one_network_pass() -> None:
    found = results(rank(0), rank(1))
    assert {name: result.status for name, result in found.items()} == {
        "interface-named": Status.PASS,
        "network-shared": Status.PASS,
    }
    assert "10.0.0.0/24" in found["network-shared"].message


@pytest.mark.parametrize(
    ("variable", "value", "there"),
    [
        ("HOROVOD_GLOO_IFACE", "eth0", True),
        ("HOROVOD_GLOO_IFACE", "eth1", False),
        ("HOROVOD_GLOO_IFACE", "eth", False),
        ("HOROVOD_GLOO_IFACE", "lo", False),
        ("NCCL_SOCKET_IFNAME", "docker", False),
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth0", True),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", True),
        ("NCCL_SOCKET_IFNAME", "hsn0,hsn1", False),
        ("OMPI_MCA_btl_tcp_if_include", "ib0,eth0", True),
        ("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/16", True),
        ("OMPI_MCA_btl_tcp_if_include", "192.168.0.0/16", False),
        ("OMPI_MCA_btl_tcp_if_include", "not/anetwork", False),
    ],
)
def test_an_interface_that_a_variable_names_must_be_there(variable: str, value: str, there: bool) -> None:
    named = {"environment": {variable: value}}
    found = results(rank(0, **named), rank(1, **named))["interface-named"]
    assert found.status is (Status.PASS if there else Status.WARN)
    if not there:
        assert f"{variable} names {value}" in found.message
        assert "eth0 (10.0.0.1)" in found.cause
    hung = replace(rank(1, **named), ended=Ended(how="timeout"))
    assert results(rank(0, **named), hung)["interface-named"].status is (Status.PASS if there else Status.FAIL)


def test_the_node_that_lacks_the_interface_is_named() -> None:
    named = {"environment": {"HOROVOD_GLOO_IFACE": "eth0"}}
    found = results(rank(0, **named), rank(1, LOOPBACK, card("ens3", "10.0.0.2"), **named))["interface-named"]
    assert "rank 1 (node2" in found.message


def test_a_node_behind_a_bridge_of_its_own_is_reached_by_none() -> None:
    hidden = rank(1, LOOPBACK, DOCKER, card("eth0", "10.0.0.2", up=False))
    assert results(rank(0), hidden)["network-shared"].status is Status.WARN
    found = results(rank(0), replace(hidden, ended=Ended(how="timeout")))["network-shared"]
    assert found.status is Status.FAIL
    assert "node2" in found.message


def test_nodes_in_different_networks_are_told() -> None:
    found = results(rank(0), replace(rank(1, card("eth0", "10.9.9.9")), ended=Ended(how="timeout")))["network-shared"]
    assert found.status is Status.FAIL
    assert "node2: 10.9.9.0/24" in found.message


def test_one_node_needs_no_network() -> None:
    alone = replace(rank(1), host="node1")
    assert set(results(rank(0), alone)) == {"interface-named"}


def with_hardware(number: int, flags: Flags | None = None, **values: Any) -> RankFacts:
    fabric = rank(number).fabric
    assert fabric is not None
    return rank(number, fabric=replace(fabric, **values), flags=flags)


@pytest.mark.parametrize(
    ("hardware", "flags", "lacking"),
    [
        ({"infiniband": INFINIBAND}, Flags(nccl=0), None),
        ({"infiniband": INFINIBAND, "libraries": {}}, Flags(nccl=0), "libibverbs.so.1"),
        ({"infiniband": (RdmaDevice(name="mlx5_0"),), "libraries": {}}, Flags(nccl=0), None),
        ({"cxi": ("cxi0",)}, Flags(nccl=0), "libcxi.so.1"),
        ({"cxi": ("cxi0",), "libraries": {"libcxi.so.1": "/x"}}, Flags(nccl=0), None),
        ({"cxi": ("cxi0",), "libraries": {"libcxi.so.1": "/x"}}, Flags(nccl=21803), "libnccl-net.so"),
        ({"cxi": ("cxi0",), "libraries": {"libcxi.so.1": "/x"}}, Flags(nccl=21803, rocm=True), "librccl-net.so"),
        (
            {"cxi": ("cxi0",), "libraries": {"libcxi.so.1": "/x", "libnccl-net.so": "/y"}},
            Flags(nccl=21803, rocm=True),
            None,  # one of the two that do
        ),
        ({"interfaces": (card("hsn0", "10.1.0.1"),)}, Flags(nccl=0), "libcxi.so.1"),
    ],
)
def test_hardware_without_its_library_is_told(hardware: dict[str, Any], flags: Flags, lacking: str | None) -> None:
    found = results(with_hardware(0, flags, **hardware), with_hardware(1, flags, **hardware)).get("fabric-libraries")
    assert (found is not None and found.status is Status.WARN) == bool(lacking)
    assert lacking is None or (found is not None and lacking in found.message)


@pytest.mark.parametrize(("nccl", "warned"), [(0, True), (21803, False)])
def test_an_mpi_of_a_wheel_uses_no_fast_hardware(nccl: int, warned: bool) -> None:
    facts = [with_hardware(number, Flags(nccl=nccl), infiniband=INFINIBAND) for number in (0, 1)]
    found = results(*facts, wheel_mpi="Open MPI 4.1.8")["fabric-libraries"]
    assert (found.status is Status.WARN) == warned
    assert not warned or found.message == "node1 has mlx5_0, and Open MPI 4.1.8 of this environment speaks only TCP"


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_mpi_of_a_wheel_is_said_without_fast_hardware_too(nodes: int) -> None:
    facts = [rank(number, flags=Flags(mpi=True, nccl=0)) for number in range(nodes)]
    found = results(*facts, wheel_mpi="Open MPI 4.1.8")["fabric-libraries"]
    assert found.status is Status.PASS and "Open MPI 4.1.8" in found.message and "only TCP" in found.message
    assert "fabric-libraries" not in results(*facts)
    by_gloo = replace(facts[0], environment={"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"})
    for other in (by_gloo, replace(facts[0], flags=Flags(mpi=True, nccl=21803)), replace(facts[0], flags=None)):
        assert "fabric-libraries" not in results(other, *facts[1:], wheel_mpi="Open MPI 4.1.8")


SOCKETS = ("NCCL INFO NET/IB : No device found.", "NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>")
CHOSEN = (*SOCKETS, "NCCL INFO Using network Socket")


@pytest.mark.parametrize(
    ("lines", "hardware", "status", "words"),
    [
        (SOCKETS, {"infiniband": INFINIBAND}, Status.WARN, "though the node has mlx5_0"),
        (CHOSEN, {"cxi": ("cxi0",)}, Status.WARN, "Using network Socket"),
        (CHOSEN, {}, Status.PASS, "sockets"),
        (("NCCL INFO Using network IB", *SOCKETS), {"infiniband": INFINIBAND}, Status.PASS, "InfiniBand"),
        (("NCCL INFO Using network AWS Libfabric",), {"cxi": ("cxi0",)}, Status.PASS, "plugin"),
        (("NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",), {}, Status.SKIP, "did not tell"),
    ],
)
def test_the_network_that_nccl_told(
    lines: tuple[str, ...], hardware: dict[str, Any], status: Status, words: str
) -> None:
    facts = [replace(with_hardware(number, **hardware), nccl_network=lines) for number in (0, 1)]
    found = results(*facts)["nccl-network"]
    assert found.status is status
    assert words in found.message


def test_on_one_node_nccl_needs_no_network() -> None:
    facts = [
        replace(with_hardware(number, infiniband=INFINIBAND), host="node1", nccl_network=SOCKETS) for number in (0, 1)
    ]
    assert "nccl-network" not in results(*facts)


# What the probe states of the machine that the tests run on, and of what NCCL wrote.


def test_the_interfaces_are_those_of_the_kernel() -> None:
    told = {one["name"]: one for one in machine.fabric()["interfaces"]}
    assert set(told) == {name for _, name in socket.if_nameindex()}
    assert (told["lo"]["kind"], told["lo"]["address"], told["lo"]["mask"]) == ("loopback", "127.0.0.1", "255.0.0.0")


def test_libraries_are_found_where_the_loader_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert machine.find_libraries()["libnccl-net.so"] != str(tmp_path)
    (tmp_path / "libnccl-net.so").touch()
    assert machine.find_libraries()["libnccl-net.so"] == str(tmp_path)


def test_a_library_in_the_loaders_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FABRIC_LIBRARIES", ("libc.so.6", "libabsent.so.1"))
    told = machine.find_libraries()
    assert told["libc.so.6"]
    assert told["libabsent.so.1"] is None


def test_nccl_is_listened_to_unless_the_user_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
    monkeypatch.setattr(nccl, "has_nvidia", lambda: True)
    for name in names:
        monkeypatch.setenv(name, "mine")
    assert nccl.listen(str(tmp_path / "record")) is None
    for name in names:
        monkeypatch.delenv(name)
    path = nccl.listen(str(tmp_path / "record"))
    assert path == str(tmp_path / "record.nccl")


def test_what_nccl_wrote_is_kept_once_and_without_hosts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "node1:12:34 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
        "node1:12:34 [0] NCCL INFO cudaDriverVersion 12040\n"
        "node1:12:99 [0] NCCL INFO Using network IB\n"
        "node1:12:98 [0] NCCL INFO Using network IB\n"
    )
    assert nccl.heard(str(log)) == [
        "[0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
        "[0] NCCL INFO Using network IB",
    ]
    assert nccl.heard(str(tmp_path / "absent")) == []
