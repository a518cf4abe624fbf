"""Ranks that start Horovod twice over Gloo do not meet where they met before: what one scope ends is not another's.

Both ranks of a host end the scopes "global", "local_..." and, of one rank each, "cross_...", in an order that a busy
machine has.
"""

import urllib.error
import urllib.request

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def ask(method, port, path, body=None):
    """Return the status of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", method=method, data=body)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


server = RendezvousServer()
port = server.start()
server.init(get_host_assignments(parse_hosts("node:2"), 2))
for rank in range(2):
    for scope in ("global", "local_node", f"cross_{rank}"):
        assert ask("PUT", port, f"{scope}/{rank}", b"address") == 200
order = ["global/0", "global/1", "local_node/0", "cross_0/0", "local_node/1", "cross_1/1"]
assert [ask("DELETE", port, path) for path in order] == [200] * len(order)
left = [path for path in order if ask("GET", port, path) != 404]
server.stop()
print("left:", " ".join(left) or "nothing")
