"""The part of pytest-xdist that says which tests follow each other on one worker."""

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]


class ByFunction(LoadGroupScheduling):  # type: ignore[misc]
    """Tests of a group follow each other, and so do those of one function, but for tests that drive the real tools.

    pytest-xdist looks at all the pieces of work that a worker has been given whenever a test ends: so fewer and larger
    ones cost less than each test on its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        if group != nodeid or nodeid.startswith(("tests/integration/", "tests/lab/")):
            return group
        return nodeid.partition("[")[0]
