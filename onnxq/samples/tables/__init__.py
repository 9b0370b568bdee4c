"""Tables as samples, a row each: CSV, Parquet, Arrow and Feather files, and what the `datasets` library saves."""
