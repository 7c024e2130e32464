"""The index files beside a segment, in Kafka's layouts."""
