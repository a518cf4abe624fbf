"""The connection to the launcher outlives the process that made it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from envkit.inside.probe.connection import CopiedDescriptor

CLIENT = (
    "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
    "s.send(b'here'); print('up', flush=True); time.sleep(60)"
)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60)
        yield made


def test_the_server_does_not_see_that_the_client_has_died(server: socket.socket) -> None:
    port = server.getsockname()[1]
    connection = CopiedDescriptor({"PMIX_SERVER_URI41": f"slurm.pmix.1.0.0;tcp4://127.0.0.1:{port}"})
    with subprocess.Popen([sys.executable, "-c", CLIENT, str(port)], stdout=subprocess.PIPE) as client:
        there, _ = server.accept()
        assert there.recv(10) == b"here"
        connection.hold(client.pid)
        client.kill()
    there.settimeout(0.3)
    with there, pytest.raises(TimeoutError):
        there.recv(10)
    assert connection.held is not None
    connection.held.close()


@pytest.mark.parametrize("env", [{}, {"PMIX_SERVER_URI2": "pmix-server;usock://tmp/x"}])
def test_without_pmix_there_is_nothing_to_hold(env: dict[str, str]) -> None:
    connection = CopiedDescriptor(env)
    connection.hold(os.getpid())
    assert connection.held is None


def test_a_process_that_is_gone_or_not_connected_has_nothing(server: socket.socket) -> None:
    port = server.getsockname()[1]
    connection = CopiedDescriptor({"PMIX_SERVER_URI41": f"x;tcp4://127.0.0.1:{port}"})
    connection.hold(os.getpid())
    assert connection.held is None
    gone = subprocess.Popen(["true"])
    gone.wait()
    connection.hold(gone.pid)
    assert connection.held is None


@pytest.mark.integration
def test_it_is_kept_until_the_folder_is_gone(server: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("meeting")
    port = server.getsockname()[1]
    code = (
        "import os, sys; from envkit.inside.probe.connection import CopiedDescriptor; import socket\n"
        f"c = CopiedDescriptor({{'PMIX_SERVER_URI4': 'x;tcp4://127.0.0.1:{port}'}})\n"
        f"c.held = socket.create_connection(('127.0.0.1', {port}))\n"
        f"c.keep({str(folder)!r})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as keeper:
        there, _ = server.accept()
        assert keeper.stdout is not None
        assert keeper.stdout.read() == b""  # closed
        os.kill(keeper.pid, signal.SIGTERM)
        there.settimeout(0.3)
        with pytest.raises(TimeoutError):
            there.recv(1)
        folder.rmdir()
        there.settimeout(10)
        assert there.recv(1) == b""
        there.close()
        assert keeper.wait() == 0
