"""The KV offload keeps the contract, bounds its memory and finds out what is damaged."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from llmkit import OutOfMemory
from llmkit.contracts import KVConnector, KVConnectorSpec, KVLayout, KVLoad
from llmkit.testing.components import create
from llmkit.testing.connectors import BLOCKS_KEPT, Ends, KVConnectorContract, spec
from llmkit_kv_offload.host_memory import HostMemory
from llmkit_kv_offload.offload import Offload, Transfers
from llmkit_kv_offload.plugin import refuses


def make(wanted: KVConnectorSpec) -> KVConnector:
    made: KVConnector = create("connector", "offload", wanted)
    return made


class TestOffload(KVConnectorContract):
    def make_connector(self, spec: KVConnectorSpec) -> KVConnector:
        return make(spec)


@pytest.fixture
def ends() -> Ends:
    return Ends(make(spec()), make(spec()))


def evict(ends: Ends, *numbers: int) -> list[bytes]:
    """Blocks of these numbers, with a key each."""
    keys = [b"key %d" % number for number in numbers]
    for number, key in zip(numbers, keys, strict=True):
        ends.fill(number, key)
    ends.step(evicted=list(zip(keys, numbers, strict=True)))
    return keys


@pytest.mark.parametrize("part", ["bytes", "sum", "place"])
def test_damage_is_a_failed_load_of_that_request_alone(ends: Ends, part: str) -> None:
    first, second, third = evict(ends, 1, 2, 3)
    host: HostMemory = ends.mover  # type: ignore[assignment]
    message = msgspec.msgpack.decode(
        ends.directory.plan([KVLoad("a", [(first, 9)]), KVLoad("b", [(second, 10), (third, 11)])], []),
        type=Transfers,
    )
    place, other = message.loads[1].places[1], message.loads[0].places[0]
    assert host.places is not None
    if part == "bytes":
        host.places[place, 2, 17] ^= 1
    elif part == "sum":
        del host._sums[place]
    else:  # another block's, whole in itself
        host.places[place] = host.places[other]
        host._sums[place] = host._sums[other]
    ends.fill(10, b"before")
    assert host.apply(msgspec.msgpack.encode(message)) == ["b"]
    ends.expect(9, first)
    ends.expect(10, b"before")


def test_the_least_recently_used_makes_room(ends: Ends) -> None:
    keys = evict(ends, *range(1, BLOCKS_KEPT + 1))
    assert all(ends.directory.matched(keys))
    ends.step(loads=[KVLoad("a", [(keys[0], 20)])])
    new = evict(ends, 15, 16)
    assert list(ends.directory.matched([*keys, *new])) == [True, False, False, *[True] * 7]


def test_what_is_kept_already_is_not_copied_again(ends: Ends) -> None:
    keys = evict(ends, 1, 2)
    assert ends.directory.plan([], [(keys[0], 5)]) == b""


def test_more_than_it_holds_keeps_what_was_used_last(ends: Ends) -> None:
    keys = evict(ends, *range(1, BLOCKS_KEPT + 4))
    assert list(ends.directory.matched(keys)) == [False] * 3 + [True] * BLOCKS_KEPT


def test_it_says_why_it_does_not_suit() -> None:
    assert refuses(spec()) is None
    assert refuses(spec(10)) == "--kv-offload-bytes is 10; one block takes 120 bytes"
    nothing = KVConnectorSpec(spec().config, KVLayout((), 1, 0, 0))
    assert refuses(nothing) == "the model keeps no KV in blocks"


def test_more_than_the_machine_has_is_named(ends: Ends) -> None:
    with pytest.raises(OutOfMemory, match="--kv-offload-bytes lower"):
        Offload(1 << 50).mover(ends)


def test_the_entry_point_imports_no_torch() -> None:
    code = (
        "import sys, llmkit_kv_offload.plugin, llmkit_kv_offload.offload; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
