"""Thrift's compact protocol: the part that Parquet's footers and page headers use.

Values stay encoded until they are needed: a struct is a dict from field number to (type, bytes), so unknown fields pass
through unchanged. Source: the Apache Thrift specification, "Thrift compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13

Fields = dict[int, tuple[int, bytes]]
"""Fields of a struct: field number to (type, encoded value). The types 1 and 2 stand for true and false."""

Read = Callable[[bytes, int], int]
"""Function that reads the value at a position of the bytes and returns its end."""

_LARGEST_BOOLEAN = 2
_NUMBERS = (I32, I64, I16)
_LONG_LIST = 15
_FIXED_SIZES = {BYTE: 1, DOUBLE: 8, UUID: 16}


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned number; return it and its end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def varint(value: int) -> bytes:
    """Encode an unsigned number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_integer(data: bytes, at: int = 0) -> int:
    """Read a signed number of 16, 32 or 64 bits."""
    value, _ = read_varint(data, at)
    return (value >> 1) ^ -(value & 1)


def integer(value: int) -> bytes:
    """Encode a signed number of at most 64 bits."""
    return varint((value << 1) ^ (value >> 63))


def read_binary(data: bytes, at: int = 0) -> bytes:
    """Read a byte string."""
    size, at = read_varint(data, at)
    return data[at : at + size]


def binary(value: bytes) -> bytes:
    """Encode a byte string."""
    return varint(len(value)) + value


def skip(data: bytes, at: int, kind: int) -> int:
    """Return the end of the value of this type that starts at `at`."""
    if kind in _NUMBERS:
        while data[at] >= 0x80:
            at += 1
        return at + 1
    if kind == BINARY:
        size, at = read_varint(data, at)
        return at + size
    if kind == STRUCT:
        return _skip_struct(data, at)
    if kind in (LIST, SET):
        return _skip_list(data, at)
    if kind == MAP:
        return _skip_map(data, at)
    if kind in _FIXED_SIZES:
        return at + _FIXED_SIZES[kind]
    raise ValueError(f"unknown Thrift type {kind} at byte {at}")


def _skip_list(data: bytes, at: int) -> int:
    kind, count, at = _list_header(data, at)
    _check_room(data, at, count)
    for _ in range(count):
        at = _skip_struct(data, at) if kind == STRUCT else _skip_element(data, at, kind)
    return at


def _check_room(data: bytes, at: int, count: int) -> None:
    """Raise IndexError if the remaining bytes cannot hold `count` values of at least a byte each.

    Without this check, a count from a damaged file would make some loops run for very long.
    """
    if count > len(data) - at:
        raise IndexError(f"{count} values in {len(data) - at} bytes at byte {at}")


def _skip_element(data: bytes, at: int, kind: int) -> int:
    # Booleans are part of the field header in structs, but take a byte in collections.
    return at + 1 if kind <= _LARGEST_BOOLEAN else skip(data, at, kind)


def _skip_struct(data: bytes, at: int) -> int:
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return at
        if head < 0x10:
            _, at = read_varint(data, at)
        kind = head & 0x0F
        # Numbers and short strings are inlined: most values are such, and calls would take most of the time.
        if kind in _NUMBERS:
            while data[at] >= 0x80:
                at += 1
            at += 1
        elif kind == BINARY and data[at] < 0x80:
            at += 1 + data[at]
        elif kind == STRUCT:
            at = _skip_struct(data, at)
        elif kind == LIST:
            at = _skip_list(data, at)
        elif kind > _LARGEST_BOOLEAN:
            at = skip(data, at, kind)


def _skip_map(data: bytes, at: int) -> int:
    count, at = read_varint(data, at)
    if count == 0:
        return at
    kinds = data[at]
    at += 1
    _check_room(data, at, 2 * count)
    for _ in range(count):
        at = _skip_element(data, at, kinds >> 4)
        at = _skip_element(data, at, kinds & 0x0F)
    return at


def read_struct(data: bytes, at: int = 0, nested: Mapping[int, Read] | None = None) -> tuple[Fields, int]:
    """Read the fields of a struct; return them and the struct's end.

    nested : functions that read the fields with these numbers and return their ends
    """
    nested = nested or {}
    fields: Fields = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >= 0x10:
            number += head >> 4
        else:
            number = read_integer(data, at)
            _, at = read_varint(data, at)
        kind = head & 0x0F
        if kind in _NUMBERS:
            end = at + 1
            while data[end - 1] >= 0x80:
                end += 1
        elif number in nested:
            end = nested[number](data, at)
        else:
            end = at if kind <= _LARGEST_BOOLEAN else skip(data, at, kind)
        fields[number] = (kind, data[at:end])
        at = end


def struct(fields: Fields) -> bytes:
    """Encode a struct."""
    parts = []
    last = 0
    for number in sorted(fields):
        kind, value = fields[number]
        if 0 < number - last < 0x10:
            parts.append(bytes([(number - last) << 4 | kind]))
        else:
            parts += (bytes([kind]), integer(number))
        parts.append(value)
        last = number
    parts.append(b"\0")
    return b"".join(parts)


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Read a list's header: the type of the elements, their number, and the start of the first."""
    head = data[at]
    count, at = head >> 4, at + 1
    if count == _LONG_LIST:
        count, at = read_varint(data, at)
    return head & 0x0F, count, at


def read_list(data: bytes, at: int = 0) -> list[bytes]:
    """Read the elements of a list, without decoding them."""
    kind, count, at = _list_header(data, at)
    _check_room(data, at, count)
    elements = []
    for _ in range(count):
        end = _skip_struct(data, at) if kind == STRUCT else _skip_element(data, at, kind)
        elements.append(data[at:end])
        at = end
    return elements


def read_structs(data: bytes, at: int, read: Read) -> int:
    """Read a list of structs, each with `read`; return its end."""
    kind, count, at = _list_header(data, at)
    _check_room(data, at, count)
    if count and kind != STRUCT:
        raise ValueError(f"expected a list of structs, found one of Thrift type {kind}")
    for _ in range(count):
        at = read(data, at)
    return at


def list_of(kind: int, elements: list[bytes]) -> bytes:
    """Encode a list of encoded elements."""
    return _encode_list(kind, len(elements), b"".join(elements))


def extended_list(data: bytes, elements: list[bytes]) -> bytes:
    """Append encoded elements to an encoded list."""
    kind, count, start = _list_header(data, 0)
    # Writers may give an empty list any element type; the lists extended here contain structs.
    return _encode_list(kind if count else STRUCT, count + len(elements), data[start:] + b"".join(elements))


def _encode_list(kind: int, count: int, elements: bytes) -> bytes:
    head = bytes([count << 4 | kind]) if count < _LONG_LIST else bytes([0xF0 | kind]) + varint(count)
    return head + elements
