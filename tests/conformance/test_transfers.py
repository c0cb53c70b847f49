"""Every registered transfer engine passes the kit."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rlframe.host.host import current_host
from rlframe.testing import TransferKit

NAMES = sorted(current_host().components("transfer"))
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _ray():
    """The store of one local Ray for all tests of this file."""
    if find_spec("ray") is None:
        yield
        return
    from rlframe_plugins.clusters.ray.session import Session

    session = Session(logical_cpus=1)
    yield
    session.close()


def _kit(name: str) -> type[TransferKit]:
    return type(f"Test_{name}", (TransferKit,), {"transfer": name, "__test__": True})


globals().update({f"Test_{name}": _kit(name) for name in NAMES})


def test_first_party_transfers_are_registered():
    assert {"inline", "ray"} <= set(NAMES)
