"""Recognises files that are not in our form, and says which command makes ours of them."""

from __future__ import annotations

import re

FROM_LIST = "jq -c '.[]' FILE makes a line of each entry"
FROM_OBJECTS = "jq -c . FILE makes a line of each object"
FROM_BULK = "jq -c '. as $action | input | {id: $action[]._id} + .' FILE makes a line of each pair"
FROM_TABS = (
    """jq -Rc 'split("\\t") | {id: .[0], text: .[1]}' FILE makes a line of its first two columns"""
)
FROM_TABLE = (
    """python -c 'import csv, json; file = open("FILE", encoding="utf-8-sig", newline=""); {}"""
    """[print(json.dumps(row)) for row in csv.DictReader(file, delimiter="{}")]' """
    """makes a line of each row"""
)
SKIP = "next(file); "
FROM_PARQUET = (
    """python -c 'import pandas; pandas.read_parquet("FILE").to_json("FILE.jsonl", """
    """orient="records", lines=True)' makes JSON Lines of it"""
)

_LIST = re.compile(r"\s*\[")
_BROKEN_OBJECT = re.compile(r"\s*\{\s*$")
_BULK = re.compile(r'\s*\{\s*"(index|create)"\s*:\s*\{')
_NAMED_ID = re.compile(r'(?i)"?(_?id|doc_?id|docno)"?\s')
_MARKUP = re.compile(r"\s*<[a-zA-Z?!]")

_NAMES_DELIMITER = re.compile(r"""(?i)\ufeff?"?sep=([^\w"\r\n])[,;\t"]*\s*$""")

_PACKED = {
    b"PAR1": f"a Parquet file; {FROM_PARQUET}",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet; unpack it, or save it as CSV",
    b"BZh": "packed with bzip2; unpack it",
    b"\xfd7zXZ": "packed with xz; unpack it",
    b"(\xb5/\xfd": "packed with zstd; unpack it",
}
"""What files are that begin with these bytes, and what helps."""


def other_form_of_objects(line: str) -> str:
    """Return what a file is whose first line is no object, and what helps; empty if unknown.

    Args:
        line: The first line of what should be JSON Lines of documents.
    """
    if _BULK.match(line):
        return f"it is a request of _bulk; {FROM_BULK}"
    json_form = other_form_of_json(line)
    if json_form:
        return json_form
    if _MARKUP.match(line):
        return 'it is SGML, XML or HTML; write each document as a line {"id": …, "text": …}'
    if line.lstrip().startswith("{"):
        return ""
    return _form_of_table(line)


def _form_of_table(line: str) -> str:
    """Return what a table is whose first line this is, and what helps; empty if it is no table."""
    delimiter = named_delimiter(line)
    if delimiter:
        escaped = delimiter.replace("\t", r"\t")
        return f"it is a table for Excel; {FROM_TABLE.format(SKIP, escaped)}"
    if "\t" in line:
        command = FROM_TABLE.format("", r"\t") if _NAMED_ID.match(line) else FROM_TABS
        return f"it is a table with tabs; {command}"

    semicolons = line.count(";")
    commas = line.count(",")
    if semicolons > commas:
        return f"it is a table with semicolons; {FROM_TABLE.format('', ';')}"
    if commas:
        return f"it is a table with commas; {FROM_TABLE.format('', ',')}"
    return ""


def named_delimiter(line: str) -> str:
    """Return the delimiter that the first line of a table names for Excel, as in ``sep=;``.

    It is empty if the line does not do that.
    """
    match = _NAMES_DELIMITER.match(line)
    return match[1] if match else ""


def other_form_of_json(line: str) -> str:
    """Return what JSON that does not have an object on each line is, and what helps."""
    if _BROKEN_OBJECT.match(line):
        return f"it is JSON with an object on several lines; {FROM_OBJECTS}"
    if _LIST.match(line):
        return f"it is a JSON list; {FROM_LIST}"
    return ""


def other_form_of_bytes(head: bytes) -> str:
    """Return what a file that is no text is, and what helps; empty if unknown.

    Args:
        head: Its first bytes.
    """
    for mark, form in _PACKED.items():
        if head.startswith(mark):
            return form
    return ""
