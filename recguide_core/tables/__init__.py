"""Tables that cross borders: Arrow schemas, files, provenance and hashes.

profile writes cost tables, calibrate writes trace and value tables, tune writes the policy
file; serve and bench read them. Knows NumPy and Arrow; no model, no torch.
"""

from recguide_core.tables.arrow import (
    ANY_CPU,
    Table,
    check_fit,
    make_table,
    read_table,
    write_table,
)
from recguide_core.tables.files import (
    append_rows,
    digest_json,
    read_json,
    read_rows,
    write_json,
    write_whole,
)
from recguide_core.tables.policyfile import PolicyFile, check_policy, read_policy, write_policy
from recguide_core.tables.schema import SCHEMAS, Columns, provenance, validate
from recguide_core.tables.shipped import shipped_folder, shipped_names, shipped_path

__all__ = [
    "ANY_CPU",
    "SCHEMAS",
    "Columns",
    "PolicyFile",
    "Table",
    "append_rows",
    "check_fit",
    "check_policy",
    "digest_json",
    "make_table",
    "provenance",
    "read_json",
    "read_policy",
    "read_rows",
    "read_table",
    "shipped_folder",
    "shipped_names",
    "shipped_path",
    "validate",
    "write_json",
    "write_policy",
    "write_table",
    "write_whole",
]
