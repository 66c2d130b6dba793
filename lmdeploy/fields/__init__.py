"""Fields of requests and engines, each declared once (`field`); whatever else needs them reads `FieldInfo`."""
