"""How results look to a person: tables and progress, one module per command."""
