from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import ModelFiles
from llmkit_loaders.gguf_file import open_gguf, part_paths
from tests.plugins.loaders.gguf_files import add_metadata, finish


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer, {"a.int": 7, "a.float": 0.5, "a.bool": True, "a.text": "köln"})
    add_metadata(writer, {"a.strings": ["x", "yy", ""], "a.ints": [1, 2, 3]})
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    packed = gguf.quants.quantize(np.ones((3, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("two", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    return finish(writer, path)


def test_metadata_and_tensors_are_read(small: Path) -> None:
    file = open_gguf(small)
    assert file.architecture == "llama"
    assert [file.metadata[f"a.{key}"] for key in ("int", "float", "bool", "text")] == [7, 0.5, True, "köln"]
    assert file.metadata["a.strings"].decode() == ["x", "yy", ""]
    assert file.metadata["a.ints"].tolist() == [1, 2, 3]
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {"one": (2, 3), "two": (3, 64)}
    assert file.tensors["one"].data.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_the_real_file_reads_as_in_gguf_s_own_reader(smollm2: ModelFiles) -> None:
    ours, theirs = open_gguf(smollm2.root), gguf.GGUFReader(smollm2.path)
    assert set(ours.metadata) == set(theirs.fields) - {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    assert (
        ours.metadata["tokenizer.ggml.tokens"].decode() == theirs.fields["tokenizer.ggml.tokens"].contents()
    )
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape.tolist()[::-1])
        assert mine.type == tensor.tensor_type
        assert np.array_equal(mine.data, tensor.data.reshape(-1).view(np.uint8))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_truncated_file_is_refused_by_name(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    # The last tensor's padding may go; everything else is needed.
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 33))])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        open_gguf(cut)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_never_fails_in_another_way(
    small: Path, tmp_path: Path, data: st.DataObject
) -> None:
    broken = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(broken), 600) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "broken.gguf"
    path.write_bytes(broken)
    message = "broken.gguf"
    try:
        for value in open_gguf(path).metadata.values():
            if hasattr(value, "decode"):
                value.decode()
    except (CheckpointError, UnsupportedModel) as error:
        message = str(error)
    assert "broken.gguf" in message


@pytest.mark.parametrize(
    ("header", "words"),
    [
        pytest.param(b"", "cannot be read", id="empty"),
        pytest.param(b"PK\x03\x04" + bytes(60), "no GGUF file", id="other format"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1", id="version 1"),
        pytest.param(b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian", id="big-endian"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors", id="absurd tensors"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "metadata keys", id="absurd keys"),
        pytest.param(
            b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 1 << 62), "ends", id="absurd array"
        ),
        pytest.param(
            b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1), "nested", id="nested array"
        ),
        pytest.param(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63), "name", id="absurd name"),
    ],
)
def test_absurd_headers_are_refused(tmp_path: Path, header: bytes, words: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_gguf(path)
    assert "bad.gguf" in str(caught.value)


def test_a_tensor_type_nobody_knows_is_named(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    entry = data.index(b"one") + 3 + 4 + 16
    path = tmp_path / "future.gguf"
    path.write_bytes(data[:entry] + struct.pack("<I", 4242) + data[entry + 4 :])
    with pytest.raises(UnsupportedModel, match=r"future\.gguf.*'one'.*4242"):
        open_gguf(path)


def _write_parts(root: Path, count: int = 3) -> list[Path]:
    paths = [root / f"m-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    for i, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", count)
        writer.add_tensor(f"t{i}", np.full((2, 2), i, np.float32))
        finish(writer, path)
    return paths


def test_all_parts_of_a_model_are_read(tmp_path: Path) -> None:
    paths = _write_parts(tmp_path)
    assert part_paths(paths[1]) == paths
    for path in paths:
        file = open_gguf(path)
        assert {name: tensor.data.view(np.float32)[0] for name, tensor in file.tensors.items()} == {
            "t0": 0,
            "t1": 1,
            "t2": 2,
        }


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = _write_parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf is missing"):
        open_gguf(paths[0])
