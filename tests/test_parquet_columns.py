"""Columns added to Parquet files: what is there keeps its bytes, what is new reads back."""

import base64
import io
import itertools
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logcal.arrow_columns import nullable_column
from pipeline.log import thrift
from pipeline.log.chunks import CheckedFooter
from pipeline.score.parquet.append import append_columns, read_ending
from pipeline.score.parquet.chunks import codec_beside, constant_chunk, encode_chunk
from pipeline.score.parquet.footer import (
    Footer,
    NotExtensibleError,
    created_by,
    extended_footer,
    read_footer,
)

PAGE = 1000


def parquet_bytes(table, **options):
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def append(source, columns, codec=1):
    """The file with these columns, in pages of PAGE rows; a text is a constant column."""
    before = pq.read_metadata(io.BytesIO(source))
    rows = [before.row_group(i).num_rows for i in range(before.num_row_groups)]
    indexed = read_ending(io.BytesIO(source)).footer.has_offset_index()
    schema = pa.schema([(n, pa.string() if isinstance(c, str) else c.type) for n, c in columns.items()])

    def chunks(start, count):
        for name, column in columns.items():
            if isinstance(column, str):
                yield constant_chunk(name, column, count, codec, indexed=indexed)
                continue
            part = column.slice(start, count)
            pages = [part.slice(i, min(PAGE, count - i)) for i in range(0, count, PAGE)]
            yield encode_chunk(name, pa.chunked_array(pages, part.type), codec, indexed=indexed)

    groups = (list(chunks(sum(rows[:i]), count)) for i, count in enumerate(rows))
    target = io.BytesIO()
    size = append_columns(io.BytesIO(source), target, schema, groups)
    assert size == len(target.getvalue())
    return target.getvalue()


def with_columns(source, values, text="v1", codec=1):
    """The file with a column of these doubles, and a constant one."""
    return append(source, {"p": nullable_column(np.asarray(values, np.float64)), "v": text}, codec)


def check(source, values, **options):
    """Add columns; compare the file's own bytes and what readers see; return the new file's metadata."""
    result = with_columns(source, values, **options)
    _, start = read_footer(io.BytesIO(source))
    assert result[:start] == source[:start]
    before, after = pq.read_table(io.BytesIO(source)), pq.read_table(io.BytesIO(result))
    assert after.drop_columns(["p", "v"]).equals(before, check_metadata=False)
    assert after.column("p").null_count == np.isnan(values).sum()
    found = after.column("p").to_numpy()
    assert found.tobytes() == np.where(np.isnan(values), np.nan, values).tobytes()
    assert set(after.column("v").to_pylist()) <= {options.get("text", "v1")}
    return pq.read_metadata(io.BytesIO(result))


def numbered(rows, **options):
    return parquet_bytes(pa.table({"a": np.arange(rows)}), **options)


def test_footers_that_are_read_and_written_keep_their_bytes():
    table = pa.table(
        {"a": [1, None], "s": ["x", "y"], "l": [[1], []], "t": pa.array([0, 1], pa.timestamp("us", "UTC"))}
        | {f"column {i}": [True, False] for i in range(20)}
    )
    for options in ({}, {"write_page_index": True, "row_group_size": 1, "compression": "zstd"}):
        footer, _ = read_footer(io.BytesIO(parquet_bytes(table, **options)))
        fields, end = thrift.read_struct(footer)
        assert end == len(footer)
        assert thrift.struct(fields) == footer
        assert thrift.list_of(thrift.STRUCT, thrift.read_list(fields[2][1])) == fields[2][1]


def test_values_of_every_type_are_passed_over():
    values = {
        1: (1, b""),
        2: (thrift.BYTE, b"\x07"),
        3: (thrift.DOUBLE, b"12345678"),
        4: (thrift.UUID, bytes(16)),
        5: (
            thrift.MAP,
            thrift.varint(2) + b"\x85" + thrift.binary(b"a") + b"\x02" + thrift.binary(b"b") + b"\x04",
        ),
        6: (thrift.MAP, b"\x00"),
        7: (thrift.LIST, thrift.list_of(1, [b"\x01", b"\x02"] * 10)),
        8: (thrift.SET, thrift.list_of(thrift.STRUCT, [thrift.struct({3: (2, b"")})])),
        9: (thrift.I16, thrift.integer(-300)),
    }
    encoded = thrift.struct(values)
    assert thrift.read_struct(encoded + b"rest") == (values, len(encoded))
    with pytest.raises(ValueError, match="unknown Thrift type 14"):
        thrift.read_struct(b"\x1e\x00")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 255, 256, 257, 1499])
def test_few_values_are_dictionary_encoded(count):
    values = np.random.default_rng(count).permutation(np.resize(np.arange(count) / count, 3000))
    column = check(numbered(3000), values).row_group(0).column(1)
    assert column.has_dictionary_page
    assert "RLE_DICTIONARY" in column.encodings
    statistics = column.statistics
    assert (statistics.min, statistics.max, statistics.null_count) == (0.0, (count - 1) / count, 0)


RANDOM = np.random.default_rng(0).random(6 * PAGE)
LATE = np.concatenate([np.full(4 * PAGE, 0.25), RANDOM])
LATE[::17] = np.nan
TIED = np.where(np.arange(10 * PAGE) % 10 == 0, 0.125, np.random.default_rng(0).random(10 * PAGE))
MOST = np.random.default_rng(0).permutation(np.resize(np.arange(60_000) / 2.0**16, 1 << 17))


@pytest.mark.parametrize(
    ("values", "encoded"),
    [(RANDOM, False), (LATE, False), (TIED, False), (MOST, True)],
    ids=["many", "many in a late page", "a tenth tied", "60,000"],
)
def test_many_values_are_plain(values, encoded):
    column = check(numbered(values.size), values).row_group(0).column(1)
    assert "RLE_DICTIONARY" in column.encodings or not encoded
    assert column.total_compressed_size < (0.75 if encoded else 1.05) * values.nbytes
    statistics = column.statistics
    expected = np.nanmin(values), np.nanmax(values), np.isnan(values).sum()
    assert (statistics.min, statistics.max, statistics.null_count) == expected


@given(
    st.lists(st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-300, np.nan, 5e-324]), max_size=60),
    st.integers(1, 40),
    st.booleans(),
)
@example([], 1, False)
def test_any_values_in_any_row_groups(values, group_size, spread):
    values = np.array(values)
    if spread:
        values = values + np.arange(values.size)
    check(numbered(values.size, row_group_size=group_size), values)


def test_bounds_cover_both_zeros():
    column = check(numbered(4), np.array([0.0, 0.0, 0.0, 0.0])).row_group(0).column(1)
    assert np.signbit(column.statistics.min)
    column = check(numbered(4), np.array([-0.0, -0.0, -0.0, -0.0])).row_group(0).column(1)
    assert not np.signbit(column.statistics.max)


def test_all_null():
    column = check(numbered(20), np.full(20, np.nan)).row_group(0).column(1)
    assert column.statistics.null_count == 20
    assert not column.statistics.has_min_max


def test_no_row_groups():
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, pa.schema([("a", pa.int8())])):
        pass
    assert check(buffer.getvalue(), np.empty(0)).num_row_groups == 0


@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4"])
def test_codecs(codec):
    source = numbered(2500, compression=codec)
    metadata = pq.read_metadata(io.BytesIO(source))
    name = metadata.row_group(0).column(0).compression
    (number,) = CheckedFooter(metadata, "x").codecs("a")
    for values in (np.resize([0.1, 0.2, np.nan], 2500), np.random.default_rng(1).random(2500)):
        metadata = check(source, values, codec=codec_beside(number))
        assert {metadata.row_group(0).column(i).compression for i in range(3)} == {name}


def test_codecs_that_nobody_should_write_become_snappy():
    lzo, snappy, hadoops_lz4 = 3, 1, 5
    assert codec_beside(lzo) == codec_beside(hadoops_lz4) == codec_beside(snappy) == snappy


def test_sizes_add_up():
    values = np.random.default_rng(0).random(3000)
    source = numbered(3000, row_group_size=1000)
    result = with_columns(source, values)
    metadata = pq.read_metadata(io.BytesIO(result))
    footer, start = read_footer(io.BytesIO(result))
    groups = thrift.read_list(thrift.read_struct(footer)[0][4][1])
    for i in range(3):
        group = metadata.row_group(i)
        columns = [group.column(j) for j in range(3)]
        assert group.total_byte_size == sum(c.total_uncompressed_size for c in columns)
        fields, _ = thrift.read_struct(groups[i])
        assert thrift.read_integer(fields[6][1]) == sum(c.total_compressed_size for c in columns)
    ends = [(c.dictionary_page_offset or c.data_page_offset) + c.total_compressed_size for c in columns]
    assert max(ends) == start


def test_descriptions_of_the_schema_are_extended():
    spark = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    avro = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    table = pa.table({"a": [1, 2], "d": pa.array(["x", "y"]).dictionary_encode()}).replace_schema_metadata(
        {
            "org.apache.spark.sql.parquet.row.metadata": json.dumps(spark),
            "parquet.avro.schema": json.dumps(avro),
            "avro.schema": "not JSON",
            "note": "kept",
        }
    )
    metadata = check(parquet_bytes(table), np.array([0.5, 0.5])).metadata
    fields = json.loads(metadata[b"org.apache.spark.sql.parquet.row.metadata"])["fields"]
    assert [(f["name"], f["type"]) for f in fields] == [("a", "long"), ("p", "double"), ("v", "string")]
    fields = json.loads(metadata[b"parquet.avro.schema"])["fields"]
    assert fields[1:] == [
        {"name": "p", "type": ["null", "double"], "default": None},
        {"name": "v", "type": ["null", "string"], "default": None},
    ]
    assert b"avro.schema" not in metadata
    assert metadata[b"note"] == b"kept"
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(metadata[b"ARROW:schema"])))
    assert schema.names == ["a", "d", "p", "v"]
    assert schema.metadata[b"note"] == b"kept"


@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_other_readers_agree(tmp_path, reader):
    module = pytest.importorskip(reader)
    values = np.random.default_rng(0).random(5000)
    values[::3] = 0.125
    values[::7] = np.nan
    for name, column in (("plain", values), ("dictionary", np.resize([0.5, 0.25, np.nan], 5000))):
        path = str(tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.parquet").write_bytes(with_columns(numbered(5000, row_group_size=1500), column))
        if reader == "duckdb":
            table = module.sql(f"select * from '{path}' order by a").to_arrow_table()
        else:
            table = module.read_parquet(path).to_arrow()
        assert table.column_names == ["a", "p", "v"]
        np.testing.assert_array_equal(table.column("p").to_numpy(), column)
        assert table.column("v").to_pylist() == ["v1"] * 5000


@pytest.mark.parametrize("content", [b"", b"PAR1", b"a,b\n1,2\n" * 9, b"PAR1" + b"\xff" * 4 + b"PAR1"])
def test_files_that_are_not_parquet(content):
    with pytest.raises(NotExtensibleError, match="expected a plain Parquet file"):
        read_footer(io.BytesIO(content))


def test_encrypted_files():
    source = numbered(2)
    with pytest.raises(NotExtensibleError, match="found one that ends in b'PARE'"):
        read_footer(io.BytesIO(source[:-4] + b"PARE"))
    footer, _ = read_footer(io.BytesIO(source))
    fields, _ = thrift.read_struct(footer)
    fields[8] = (thrift.STRUCT, thrift.struct({}))
    with pytest.raises(NotExtensibleError, match="found an encrypted one"):
        extended_footer(Footer.read(thrift.struct(fields)), pa.schema([("p", pa.float64())]), [[]])


def test_a_footer_that_does_not_parse():
    footer, _ = read_footer(io.BytesIO(numbered(2)))
    with pytest.raises(NotExtensibleError, match="does not read as Parquet's"):
        Footer.read(footer[: len(footer) // 2])


def test_a_source_that_shrinks_while_it_is_copied():
    source = numbered(5000)

    class Cut(io.BytesIO):
        def read(self, size=-1):
            return b"" if self.tell() == 0 else super().read(size)

    with pytest.raises(OSError, match="the file ended after 0: it was changed while being read"):
        append_columns(Cut(source), io.BytesIO(), pa.schema([]), [])


@pytest.mark.parametrize(
    ("rows", "nulls", "codec"),
    [(0, 0.0, 0), (1, 1.0, 1), (7, 0.3, 6), (8, 0.0, 1), (2500, 0.3, 0), (2500, 1.0, 6)],
)
def test_booleans_with_nulls_read_back(codec, nulls, rows):
    rng = np.random.default_rng(rows)
    values, null = rng.random(rows) < 0.4, rng.random(rows) < nulls
    column = pa.array([None if n else bool(v) for v, n in zip(values, null, strict=True)], pa.bool_())
    source = numbered(rows, row_group_size=900)
    result = append(source, {"decision": column}, codec)
    assert pq.read_table(io.BytesIO(result))["decision"].combine_chunks().equals(column)
    metadata = pq.read_metadata(io.BytesIO(result))
    for i, low in enumerate(range(0, rows, 900)):
        statistics = metadata.row_group(i).column(1).statistics
        present = values[low : low + 900][~null[low : low + 900]]
        assert statistics.null_count == null[low : low + 900].sum()
        if present.size:
            assert (statistics.min, statistics.max) == (present.min(), present.max())


# What other readers expect


def test_new_columns_have_offset_indexes_where_old_ones_have_them():
    values = np.random.default_rng(0).random(60_000)
    for indexed in (False, True):
        source = parquet_bytes(pa.table({"a": values}), row_group_size=40_000, write_page_index=indexed)
        metadata = check(source, values)
        for group in range(metadata.num_row_groups):
            columns = [metadata.row_group(group).column(i) for i in range(metadata.num_columns)]
            assert [column.has_offset_index for column in columns] == [indexed] * 3


@pytest.mark.parametrize("sizes", [(40, 0, 40), (0, 40), (40, 0), (0,)])
def test_new_columns_have_offset_indexes_beside_empty_row_groups(sizes):
    buffer, table = io.BytesIO(), pa.table({"a": np.arange(40)})
    with pq.ParquetWriter(buffer, table.schema, write_page_index=True) as writer:
        for size in sizes:
            writer.write_table(table.slice(0, size))
    metadata = check(buffer.getvalue(), np.random.default_rng(0).random(sum(sizes)))
    for group, size in enumerate(sizes):
        columns = [metadata.row_group(group).column(i) for i in range(metadata.num_columns)]
        assert [column.has_offset_index for column in columns] == [size > 0] * 3


def test_offset_indexes_say_where_the_pages_are():
    values = np.random.default_rng(0).random(300_000)
    source = parquet_bytes(pa.table({"a": values}), write_page_index=True)
    result = with_columns(source, values, codec=0)
    footer, _ = read_footer(io.BytesIO(result))
    [[_, chunks]] = Footer.read(footer).row_groups
    for chunk in chunks[1:]:
        start, size = (thrift.read_integer(chunk[number][1]) for number in (4, 5))
        index, end = thrift.read_struct(result[start : start + size])
        assert end == size
        pages = [thrift.read_struct(entry)[0] for entry in thrift.read_list(index[1][1])]
        metadata, _ = thrift.read_struct(chunk[3][1])
        offsets, sizes, rows = ([thrift.read_integer(page[n][1]) for page in pages] for n in (1, 2, 3))
        assert (offsets[0], rows[0]) == (thrift.read_integer(metadata[9][1]), 0)
        assert offsets[1:] == [a + b for a, b in zip(offsets, sizes, strict=True)][:-1]
        assert offsets[-1] + sizes[-1] == start
        assert rows == sorted(set(rows))
    first, second = (thrift.read_struct(chunk[3][1])[0] for chunk in chunks[1:])
    assert len(values) * 8 < thrift.read_integer(first[7][1])
    [page] = [offset for offset in offsets if offset == thrift.read_integer(second[9][1])]
    assert result[page] == 0x15  # a page header begins with its type, a number of 32 bits


@pytest.mark.system
def test_datafusion_takes_what_was_extended(tmp_path):
    datafusion = pytest.importorskip("datafusion")
    values = np.random.default_rng(1).random(1000)
    source = parquet_bytes(pa.table({"a": values}), row_group_size=300, write_page_index=True)
    (tmp_path / "x.parquet").write_bytes(with_columns(source, values))
    context = datafusion.SessionContext()
    context.register_parquet("x", str(tmp_path / "x.parquet"))
    found = context.sql("SELECT p FROM x WHERE a > 0.5 AND p > 0.5 ORDER BY p").to_pydict()["p"]
    assert found == sorted(values[values > 0.5].tolist())


def test_we_are_named_and_so_is_who_wrote_the_old_columns():
    named = pq.read_metadata(io.BytesIO(with_columns(numbered(10), np.ones(10)))).created_by
    assert named.startswith("parquet-cpp-arrow version ")
    assert "columns added by logcal version 0." in named
    for before, after in (
        (b"parquet-mr version 1.6.0 (build abc)", b"parquet-mr version 1.6.0 (build abc; columns added by"),
        (b"impala version 3 ", b"impala version 3 (build columns added by logcal "),
    ):
        assert created_by(before).startswith(after)


@pytest.mark.parametrize(
    "name", [b"", b"parquet-mr", b"parquet-mr 1.2", b"caf\xe9", b"a version 1 (built) x"]
)
def test_a_writers_name_of_any_form_stays(name):
    assert created_by(name) == name


@pytest.mark.parametrize("kind", [thrift.LIST, thrift.SET, thrift.MAP])
def test_more_values_than_there_are_bytes_are_not_stepped_over(kind):
    many = thrift.varint(1 << 62)
    encoded = (many + b"\x11" if kind == thrift.MAP else b"\xf1" + many) + bytes(50)
    for value in (encoded, bytes([0x10 | kind]) + encoded):
        with pytest.raises(IndexError, match="values in"):
            thrift.skip(value, 0, kind if value is encoded else thrift.STRUCT)


@pytest.mark.parametrize("bits", [7, 14, 21, 28, 35, 63, 64])
def test_numbers_of_any_length_are_written_and_read(bits):
    for value in range(max(0, 2**bits - 3), min(2**bits + 3, 2**64)):
        encoded = thrift.varint(value)
        assert len(encoded) == max(1, -(-value.bit_length() // 7))
        assert thrift.read_varint(encoded + b"rest", 0) == (value, len(encoded))


def test_files_that_differ_in_names_rows_and_codecs_have_nothing_of_each_other():
    """What is kept from file to file is kept by all that it depends on."""
    names = ["p", "v", "a longer name"]
    for rows, text, codec, name in itertools.product((1, 300), ("v1", "v2"), (0, 6), names):
        schema = pa.schema([pa.field(f"{name} {rows}", pa.int64())], metadata={"own": f"{rows} {text}"})
        source = parquet_bytes(pa.table({f"{name} {rows}": np.arange(rows)}, schema=schema))
        result = pq.read_table(io.BytesIO(with_columns(source, np.arange(rows) % 3.0, text, codec)))
        assert result.schema.names == [f"{name} {rows}", "p", "v"]
        assert result.schema.metadata[b"own"].decode() == f"{rows} {text}"
        assert result.column("p").to_pylist() == [i % 3.0 for i in range(rows)]
        assert result.column("v").to_pylist() == [text] * rows


def test_wide_footers_are_extended_by_compiled_code():
    table = pa.table({f"c{i}": np.arange(30) + 0.5 for i in range(60)})
    source = parquet_bytes(table, row_group_size=1)
    assert len(read_footer(io.BytesIO(source))[0]) > 1 << 16
    check(source, np.arange(30) / 7)


def test_pandas_is_not_imported():
    """It takes half a second of each command."""
    code = """
import sys
import numpy as np
import pyarrow as pa
from logcal.arrow_columns import as_column
from pipeline.score.parquet.chunks import constant_chunk, encode_chunk
encode_chunk("p", pa.chunked_array([as_column(np.arange(9.0))]), 1)
constant_chunk("v", "v1", 9, 1)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
