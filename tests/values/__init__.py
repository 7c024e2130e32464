"""Values in a registry's framing: Avro, Protobuf and JSON Schema as columns, and back."""
