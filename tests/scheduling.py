"""The part of pytest-xdist that says which tests follow each other on one worker."""

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]


class ByFunction(LoadGroupScheduling):  # type: ignore[misc]
    """Tests of a group follow each other, and so do those of one function, but for tests that drive the real tools.

    pytest-xdist looks at all that a worker has been given whenever a test ends: with fewer and larger pieces of work
    that takes a second, where for each test on its own it took as long as a tenth of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        if group != nodeid or nodeid.startswith(("tests/integration/", "tests/lab/")):
            return group
        return nodeid.partition("[")[0]
